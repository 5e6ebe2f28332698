"""lnexp.watch inside other people's trainers."""

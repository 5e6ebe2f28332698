"""What each command does, apart from parsing its words."""

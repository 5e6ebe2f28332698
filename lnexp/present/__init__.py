"""What people look at: tables and plots, drawn from frames."""

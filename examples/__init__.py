"""Small programs that show the streamers at work; see README.md beside this file."""

"""Generated conversations with questions whose evidence is known, for the recall benchmark."""

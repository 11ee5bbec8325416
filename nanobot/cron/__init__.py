"""Jobs: what is to happen at a time, posted to the bus when that time comes."""

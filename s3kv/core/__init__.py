"""Pure decisions: formats, names, plans and the index protocol. No I/O, no clock, no threads."""

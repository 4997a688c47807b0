"""Use with other tools: programs in other languages (`export`), and the DAPPER package (`dapper`)."""

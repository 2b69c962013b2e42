"""Content of the site that comes from code: pages of problems, tables, pictures and the command line's reference."""

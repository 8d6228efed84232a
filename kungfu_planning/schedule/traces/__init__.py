"""Where jobs come from: files in the formats of published traces, tables of your own, or a seeded generator."""

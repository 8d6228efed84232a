"""Sources of jobs: files in the formats of published traces, custom tables, or a seeded generator."""

"""What is measured, and the SQL and the page that are generated from it."""

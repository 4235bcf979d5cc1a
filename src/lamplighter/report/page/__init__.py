"""The report as one page: a single file that a browser opens without any network."""

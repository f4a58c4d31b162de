"""Certificates of runs, for privacy officers: facts of a run, sentences about them, a page, a PDF, and a signature."""

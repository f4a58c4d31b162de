"""Scripts that write the pages of docs/ and the files of results/: `python -m scripts.NAME`."""

"""The way from text notebooks to a rendered book: convert, run, stage, render; each step keyed by content."""

"""The report of `validate` as one page of HTML, for people: nothing is loaded with it, and it runs no script."""

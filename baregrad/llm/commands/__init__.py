"""The subcommands about language models: each module has a `main(argv)`.

The table of all subcommands is `cli/dispatch.py`.
"""

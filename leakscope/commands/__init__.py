"""The subcommands, one file each: `command` is a click command."""

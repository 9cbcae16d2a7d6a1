"""The deployment as a value: units, channels, and how a plan is built, compared and changed. Pure."""

"""Terminal output: values in, rich renderables out; one concern per module."""

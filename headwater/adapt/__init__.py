"""When a deployment is to be changed by itself: what was promised, what is measured, what is better. Pure."""

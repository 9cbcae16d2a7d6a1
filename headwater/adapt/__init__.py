"""When a deployment is to be changed by itself: the SLO, what is measured, what is better. Pure."""

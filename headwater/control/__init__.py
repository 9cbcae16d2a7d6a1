"""Makes the world match the wanted plan: the store of what is wanted and done, and the controller that acts.

Here lives what talks to the store and to zones through ``ZonePort``; decisions are taken in
``headwater.plan``. Nothing here knows Spark, nor how a zone is reached.
"""

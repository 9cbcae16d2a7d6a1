"""A city's road sensors: a small dataflow of many units, for the costs of starting, changing and idling."""

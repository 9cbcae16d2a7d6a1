"""Rules that turn a dataflow into an equivalent one: pure, one small function each, none knows places or costs."""

"""WHERE: layers, the tree of zones, hosts and links, and the file that describes them."""

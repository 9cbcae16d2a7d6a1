"""A channel between two units: its contract, filelog and Kafka, and the transport between zones."""

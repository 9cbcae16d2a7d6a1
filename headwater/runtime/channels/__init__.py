"""Channels join units durably. Each kind fulfils the same contract and passes the same conformance suite."""

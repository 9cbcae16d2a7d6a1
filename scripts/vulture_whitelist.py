"""Names that vulture reports although they are used: `make check` reads this file beside the package; nothing runs it.

A name belongs here if code outside the package uses it: a framework that calls it, a reader of JSON, or a program
that uses the public API. Code that only tests use does not belong in the package.
"""

from typing import Any

_: Any = None

# Python, its import system and py4j look these up.
_.__getattr__
_.get_code
_.Java
_.implements

# PySpark reads it, and calls it.
_._cached_schema
_.get_config_dict

# Typer calls it for the options of `headwater` itself.
_._main

# The public API: methods of a dataflow, its readers and its writers.
_.print_schema
_.transform
_.to_zone
_.count_window
_.merge
_.backfill
_.drop_duplicates_within_watermark
_.sensors
_.mqtt
_.opcua
_.sparkplug
_.kafka
_.jdbc
_.iceberg
_.postgres

# protobuf and clients of asyncua read these.
_.type_name
_.connection_lost_callback
_.session_timeout

# headwater.testing is public: its world, its models and the graphs and figures of the papers.
_.release_all
_.harm
_.ModelledWorld
_.set_rates
_.go
_.read_graph
_.series_parallel
_.TABLE_3
_.DEVICES
_.APP_1
_.APP_2

# Typer finds commands by their decorators, and their choices by the values of an enumeration.
_._main
_.demo
_.viewer
_.off
_.advise
_.auto
_.drop_oldest
_.drop_newest
_.fail
_.at_least_once

# FastAPI and NiceGUI find routes, pages and handlers of exceptions by their decorators.
_.me
_.suppose
_.invalid
_.sign_in
_.sign_out
_.map_page
_.dataflows_page
_.deployment_page
_.proposals_page
_.proposal_page
_.letters_page
_.whatif_page

# Fields of values that become JSON: read by clients, by the dashboard and by the renderings, which take them by name.
_.bandwidth_bytes_per_s
_.declared_bytes_per_s
_.alternatives
_.models
_.row_cores
_.unchanged

# Pydantic reads a model's configuration.
_.model_config

# PyIceberg makes this class by its name.
_.TableFiles

# Spark calls data sources, stream readers and processors of state by these names, with these arguments.
_.streamReader
_.streamWriter
_.overwrite
_.initialOffset
_.latestOffset
_.getDefaultReadLimit
_.prepareForTriggerAvailableNow
_.handleInputRows
_.handleExpiredTimer
_.expiredTimerInfo

# Flight calls its middleware; Paho its callbacks; sqlite3 and uvicorn read these attributes.
_.start_call
_.on_connect
_.on_connect_fail
_.on_disconnect
_.on_subscribe
_.on_message
_.isolation_level
_.autocommit
_.should_exit

# PySpark's names of methods, for users.
_.withColumnRenamed
_.selectExpr
_.printSchema
_.dtypes
_.toDF

# PySpark calls its client by these names.
_.is_closed
_._set_relation_in_plan
_._analyze
_.execute_command
_.run_id
_.register_output
_.register_flow
_.register_auto_cdc_flow
_.register_sql
_.redirect_request
_.sql_text
_.intra_op_num_threads
_.inter_op_num_threads

# paho's properties of a message.
_.UserProperty

# The benchmarks draw problems with it.
_.three_layers

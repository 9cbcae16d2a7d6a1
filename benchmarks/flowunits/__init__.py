"""The FlowUnits paper's experiment: one Spark cluster stretched over zones, beside Headwater.

python -m benchmarks.flowunits [--quick] [--rows N] [--cells 10mbit/0,unlimited/100] [--json FILE]
"""

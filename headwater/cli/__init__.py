"""The command line: each module holds the commands of one concern, ``app`` joins them."""

from headwater.cli.app import app as app
from headwater.cli.app import main as main

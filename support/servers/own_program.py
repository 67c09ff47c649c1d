"""A program that starts a server by itself, in a process that it forks, as verl's adapter does.

No plugin is loaded before ``launch_server`` runs there.
"""

import sys

from sglang.srt.entrypoints.http_server_engine import launch_server_process
from sglang.srt.server_args import prepare_server_args

if __name__ == "__main__":
    launch_server_process(prepare_server_args(sys.argv[1:])).join()

"""Start the ranks of a gang: python forked_ranks.py MODULE N_RANKS FOLDER [SEED]. Torch is imported once."""

import importlib
import os
import sys
import traceback


def main(module: str, n_ranks: int, folder: str, *more: str) -> int:
    rank_of_a_gang = importlib.import_module(
        module
    )  # it starts no thread, so a fork is a new process as good as any
    if torch := sys.modules.get("torch"):  # it may have been loaded before this was started
        torch.set_num_threads(1)
    ranks = []
    for rank in range(n_ranks):
        pid = os.fork()
        if not pid:
            try:
                rank_of_a_gang.main(
                    rank, n_ranks, f"{folder}/store", f"{folder}/{rank}.json", *map(int, more)
                )
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        ranks.append(pid)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))

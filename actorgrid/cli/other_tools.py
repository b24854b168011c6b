"""What people bring along from docker, Slurm and kubectl, and what it is called here."""

from __future__ import annotations

_STOP = (
    "Ctrl-C where `actorgrid up` runs, or SIGTERM to its process, stops a host; one job: `actorgrid cancel JOB`;"
    " out of the cluster for good: `actorgrid leave`"
)
_LIST = "`actorgrid ps` lists jobs, `actorgrid ps --all` those that ended as well"
_CANCEL = "`actorgrid cancel JOB`"
_WATCH = "`actorgrid ps --watch` lists jobs as they change, `actorgrid gpus` shows what each device does"
_RUN = "`actorgrid run -- CMD`, or `actorgrid run --detach -- CMD` to get the job's id and leave"
_GANG = "`actorgrid run --gang N -- CMD`, with its rank in RANK"
_HOSTS = "`actorgrid hosts`, `actorgrid gpus`"

COMMANDS = {
    **dict.fromkeys(("down", "stop", "shutdown", "halt"), _STOP),
    **dict.fromkeys(("start", "init", "agent", "daemon"), "`actorgrid up` runs this machine's agent"),
    "join": "`actorgrid up --join HOST --token TOKEN`, with what `actorgrid token create` printed there",
    **dict.fromkeys(("top", "htop", "stats", "watch", "nvidia-smi", "smi"), _WATCH),
    **dict.fromkeys(("list", "ls", "jobs", "queue", "squeue", "qstat", "sacct", "bjobs"), _LIST),
    **dict.fromkeys(("kill", "rm", "delete", "scancel", "qdel", "bkill", "abort"), _CANCEL),
    **dict.fromkeys(("salloc", "create", "bsub"), _RUN),
    "srun": f"{_RUN}; several processes: {_GANG}",
    **dict.fromkeys(("mpirun", "torchrun"), f"{_GANG}: `actorgrid run --gang 4 --gpus 1 -- python train.py`"),
    **dict.fromkeys(
        ("sbatch", "qsub"),
        "`actorgrid submit FILE.py`, or `actorgrid run --detach -- sh FILE`; #SBATCH lines are options of `run` here",
    ),
    **dict.fromkeys(("sinfo", "nodes", "node", "machines"), _HOSTS),
    "scontrol": "`actorgrid why JOB`, `actorgrid hosts`, `actorgrid drain HOST`",
    **dict.fromkeys(("describe", "explain"), "`actorgrid why JOB`"),
    **dict.fromkeys(("log", "tail"), "`actorgrid logs -f JOB`"),
    **dict.fromkeys(("info", "health", "cluster"), "`actorgrid status`"),
    **dict.fromkeys(("cordon", "disable"), "`actorgrid drain HOST`"),
    **dict.fromkeys(
        ("pull", "build", "images", "image", "push"),
        "there are no images: a job runs what is installed on the host, with the venv it is given",
    ),
}
"""Words that are no commands, and what does it here."""

_TERMINAL = "--pty gives the job a terminal, which is ours; --stdin sends our standard input"
_FILES = "a job sees the host's files as they are; --cwd DIR says where it runs"
_WHERE = "a job goes where there is room; what it needs says where: --gpu-model, --gpus, --memory"

OPTIONS = {
    **dict.fromkeys(("-i", "-t", "-it", "-ti", "--interactive", "--tty", "--pty"), _TERMINAL),
    "-d": "--detach",
    "--rm": "nothing has to be removed: the last jobs' output is kept (work.keep_finished_jobs)",
    "-e": "--env NAME=VALUE",
    **dict.fromkeys(("-w", "--workdir", "-D", "--chdir"), "--cwd DIR"),
    **dict.fromkeys(("-v", "--volume", "--mount"), _FILES),
    **dict.fromkeys(("-n", "-N", "--nodes", "--ntasks"), "--gang N: members that start together"),
    **dict.fromkeys(("-c", "--cpus-per-task"), "--cpus N"),
    **dict.fromkeys(("-m", "--mem", "--mem-per-cpu", "--shm-size"), "--memory SIZE, as in --memory 64GiB"),
    **dict.fromkeys(("-G", "--gres", "--gpus-per-node", "--gpus-per-task", "--device"), "--gpus N"),
    **dict.fromkeys(("-C", "--constraint"), "--gpu-model MODEL"),
    **dict.fromkeys(("-p", "--partition", "--nodelist"), _WHERE),
    **dict.fromkeys(("--time", "--stop-timeout"), "--timeout TIME"),
    **dict.fromkeys(("-J", "--job-name"), "--name NAME"),
    **dict.fromkeys(("-o", "--output", "--error"), "`actorgrid logs JOB` has the output of each, also later"),
    **dict.fromkeys(("--dependency",), "--after JOB"),
    **dict.fromkeys(("-a",), "--all"),
    **dict.fromkeys(("--export",), "--env-from-me, --env NAME"),
}
"""Options of others, by what is meant here."""


def of_command(word: str) -> str:
    """A sentence, with a space before it, on what does *word* here; empty for a word nobody brings along."""
    found = COMMANDS.get(word)
    return f" Here: {found}." if found else ""


def of_option(option: str, known: set[str]) -> str:
    """What is meant by *option* at a command that has the *known* ones; empty when nothing of it is there."""
    found = OPTIONS.get(option, "")
    named = {word.rstrip(",:;") for word in found.split() if word.startswith("--")}
    return found if not named or named & known else ""

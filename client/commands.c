/* The table of commands. Adding a command is adding a row here and a file beside it. */
#include "client/commands.h"

const struct command commands[] = {
    {"up", "start a private dtd on this machine", cmd_up},
    {"down", "stop the private dtd and all of its jobs", cmd_down},
    {"submit", "check a job file and start it", cmd_submit},
    {"run", "run a command as every worker of a job, as torchrun would", cmd_run},
    {"status", "list jobs, or show one", cmd_status},
    {"metrics", "print a job's loss, speed and learning rate, step by step", cmd_metrics},
    {"logs", "print what a job's workers wrote", cmd_logs},
    {"why", "show what has happened to a job, and what it cost", cmd_why},
    {"cancel", "stop a job", cmd_cancel},
    {"resume", "go on from a checkpoint, on any number of workers", cmd_resume},
    {"plan", "show what a job would need, without starting it", cmd_plan},
    {"ckpt", "list, inspect and verify checkpoints", cmd_ckpt},
    {"data", "prepare training data, or show a prepared set", cmd_data},
    {"generate", "continue a prompt with a trained model", cmd_generate},
    {"node", "show the daemon: processes, slots, log; drain a node", cmd_node},
    {"store", "open a c10d store for PyTorch, list, close", cmd_store},
    {"cluster", "make one service of several nodes: init, join, status", cmd_cluster},
    {"version", "print the versions of dtctl and of the daemon", cmd_version},
    {"help", "show this list, or a command's help", cmd_help},
};
const int n_commands = sizeof(commands) / sizeof(commands[0]);

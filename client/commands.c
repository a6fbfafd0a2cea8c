/* The table of commands. A new command is a row here and a file client/cmd_<verb>.c. */
#include "client/commands.h"

#include <string.h>

const struct command commands[] = {
    {"up", "start a private dtd on this machine", cmd_up},
    {"down", "stop the private dtd and all of its jobs", cmd_down},
    {"submit", "check a job file and start it", cmd_submit},
    {"run", "run a command as every worker of a job, like torchrun", cmd_run},
    {"status", "list jobs, or show one", cmd_status},
    {"metrics", "print a job's loss, speed and learning rate per step", cmd_metrics},
    {"logs", "print the output of a job's workers", cmd_logs},
    {"profile", "record the next steps of a running job as a trace for Perfetto", cmd_profile},
    {"why", "show a job's failures and how long each recovery took", cmd_why},
    {"top", "show nodes and jobs, updated in place", cmd_top},
    {"events", "list what happened to jobs and nodes", cmd_events},
    {"report", "write a report of a job: time, curves, utilisation, advice", cmd_report},
    {"cancel", "stop jobs", cmd_cancel},
    {"resume", "start a job from a checkpoint, on any number of workers", cmd_resume},
    {"rm", "remove jobs that have ended from the list, with their logs", cmd_rm},
    {"rerun", "submit a job that has ended again", cmd_rerun},
    {"plan", "show what a job needs, without starting it", cmd_plan},
    {"explain", "write a page that animates the training step of a job", cmd_explain},
    {"ckpt", "list, verify, import and export checkpoints", cmd_ckpt},
    {"data", "prepare training data, show a prepared set or the tokens of a text", cmd_data},
    {"generate", "continue a prompt with a trained model", cmd_generate},
    {"node", "show the daemon's processes, slots and log; drain a node", cmd_node},
    {"store", "open, list and close c10d stores for PyTorch", cmd_store},
    {"cluster", "join several nodes into one service: init, join, status", cmd_cluster},
    {"web", "show nodes and jobs in a browser", cmd_web},
    {"version", "print the versions of dtctl and of the daemon", cmd_version},
    {"help", "show this list, or the help of a command", cmd_help},
};
const int n_commands = sizeof(commands) / sizeof(commands[0]);

/* Words that other programs have for a command; they are not in the list. */
char *command_alias(char *word)
{
    static char status[] = "status", cancel[] = "cancel";
    static const struct {
        const char *word;
        char *command;
    } aliases[] = {{"ls", status},   {"ps", status},   {"list", status},
                   {"jobs", status}, {"stop", cancel}, {"kill", cancel}};
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (strcmp(word, aliases[i].word) == 0)
            return aliases[i].command;
    return word;
}

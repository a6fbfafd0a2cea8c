/* The table of dtd's configuration. Every key has a default, so a private dtd needs no configuration file. */
#include "common/conf/node.h"

#include "common/base/file.h"
#include "common/base/ports.h"
#include "common/conf/schema.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (1u << 20)

static const struct schema_name level_names[] = {
    {"error", LOG_ERROR}, {"warn", LOG_WARN}, {"info", LOG_INFO}, {"debug", LOG_DEBUG}, {0}};

static const char *check_name(const char *text)
{
    size_t good = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return good == strlen(text) && good <= 253
               ? NULL
               : "a host name of at most 253 letters, digits, dots, dashes and underscores";
}

static const char *check_dir(const char *text)
{
    bool legal = !text[0] || (text[0] == '/' && strlen(text) < 4096);
    return legal ? NULL : "an absolute path of at most 4095 bytes, or \"\"";
}

static const char *check_user(const char *text)
{
    size_t good = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return good == strlen(text) && good <= 32 && text[0] != '-' ? NULL : "a user name of at most 32 bytes, or \"\"";
}

static const char *check_gpus(const char *text)
{
    size_t n = strlen(text);
    bool number = n >= 1 && n <= 2 && strspn(text, "0123456789") == n && atoi(text) <= 64;
    bool legal = number || strcmp(text, "auto") == 0;
    return legal ? NULL : "auto, or a number from 0 to 64";
}

static const char *check_address(const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    bool legal = colon && colon > text && strlen(text) <= 263 && digits >= 1 && digits <= 5 && !colon[1 + digits] &&
                 atoi(colon + 1) <= 65535;
    return legal ? NULL : "host:port, 1.2.3.4:port or [v6]:port";
}

static const char *check_host(const char *text)
{
    size_t good = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:");
    return good == strlen(text) && good <= 253 ? NULL
                                               : "a host name, an IPv4 address or an IPv6 address without brackets";
}

static const char *check_ports(const char *text)
{
    struct ports p;
    return ports_parse(text, &p) ? NULL : PORTS_NEED;
}

static const char *check_address_or_none(const char *text)
{
    return text[0] ? check_address(text) : NULL;
}

#define ROW(field, kind, default_, help_) \
    .key = #field, .type = (kind), .offset = offsetof(struct node_conf, field), .def = (default_), .help = (help_)

static const struct schema_row rows[] = {
    {ROW(name, SCHEMA_TEXT, "\"\"", "Name of this node in the cluster. \"\": the host name."), .check = check_name},
    {ROW(state_dir, SCHEMA_TEXT, "\"\"",
         "Folder for dtd's state. \"\": `/var/lib/dtd` for a system-wide dtd, else `$DTD_DIR`, else "
         "`$XDG_STATE_HOME/dtd`, else `~/.local/state/dtd`; if hosts may share that, `/var/tmp/dtd-UID`."),
     .check = check_dir},
    {ROW(run_dir, SCHEMA_TEXT, "\"\"", "Folder for control.sock of a system-wide dtd. \"\": `/run/dtd`."),
     .check = check_dir},
    {ROW(user, SCHEMA_TEXT, "\"\"", "User that dtd-control of a system-wide dtd runs as; never root. \"\": `dtd`."),
     .check = check_user},
    {ROW(slots, SCHEMA_INT, "0",
         "Maximum number of workers on this node, at most 512. 0: the number of CPU cores, but at least 16."),
     .min = 0, .max = CONF_NODE_MAX_SLOTS},
    {ROW(gpus, SCHEMA_TEXT, "auto",
         "Number of GPUs on this node. auto: the GPUs that `dt-worker --probe` finds. A number is used without a "
         "check."),
     .check = check_gpus},
    {ROW(log.level, SCHEMA_ENUM, "info", "Log level. The environment variable `DTD_LOG` overrides it."),
     .names = level_names},
    {ROW(snapshot.entries, SCHEMA_INT, "1024",
         "Number of log entries after which dtd takes a snapshot, if they have a quarter of the bytes of the last "
         "one."),
     .min = 16, .max = 1000000},
    {ROW(snapshot.trailing, SCHEMA_INT, "256",
         "Number of log entries that are kept from before a snapshot, for nodes that lag behind; fewer if they have "
         "more than 16 MiB."),
     .min = 0, .max = 1000000},
    {ROW(disk.reserve_mib, SCHEMA_INT, "16",
         "Disk space in MiB that is reserved for the replicated log, for when the disk is full."),
     .min = 1, .max = 1048576},
    {ROW(disk.log_mib, SCHEMA_INT, "1024",
         "Maximum size in MiB of the log of each worker on this node. The middle of a longer log is left out, and a "
         "line "
         "in it names the number of bytes. A job can ask for less (`run.log_bytes`). 0: no maximum."),
     .min = 0, .max = 1048576},
    {ROW(disk.metrics_mib, SCHEMA_INT, "256",
         "Maximum size in MiB of the file in which this node, while it leads, keeps the metrics of a job: some 800,000 "
         "steps. Above it, older steps are thinned out: every second row of them is left out, again and again. 0: no "
         "maximum."),
     .min = 0, .max = 1048576},
    {ROW(users.jobs, SCHEMA_INT, "512",
         "Maximum number of jobs of one user of a system-wide dtd that have not ended. Of the 2048 places for jobs, a "
         "user never gets more than are left for all others."),
     .min = 1, .max = 2048},
    {ROW(users.job_mib, SCHEMA_INT, "64",
         "Maximum size in MiB of all job files of one user of a system-wide dtd. Above it, his oldest jobs that have "
         "ended are removed, and a submit is refused if those that have not ended need more."),
     .min = 4, .max = 65536},
    {ROW(users.connections, SCHEMA_INT, "1024",
         "Maximum number of connections of one user's programs to control.sock of a system-wide dtd. Processes of jobs "
         "do not count. Of the open files of dtd-control, a user never gets more than are left for all others."),
     .min = 16, .max = 65536},
    {ROW(users.calls, SCHEMA_INT, "512",
         "Maximum number of calls of one user's programs that wait for an answer of a system-wide dtd, such as "
         "`dtctl logs -f`."),
     .min = 16, .max = 4096},
    {ROW(users.buffer_mib, SCHEMA_INT, "64",
         "Maximum memory in MiB for answers that one user's programs have not read. From half of it on, they are not "
         "read either; above it, the connection with the most is closed."),
     .min = 48, .max = 65536},
    {ROW(users.stores, SCHEMA_INT, "32", "Maximum number of c10d stores of one user on this node (`dtctl store`)."),
     .min = 1, .max = 1024},
    {ROW(users.store_connections, SCHEMA_INT, "4096",
         "Maximum number of connections to all c10d stores of one user on this node of a system-wide dtd, with those "
         "of his jobs."),
     .min = 16, .max = 1048576},
    {ROW(users.store_mib, SCHEMA_INT, "512",
         "Maximum memory in MiB of all c10d stores of one user on this node of a system-wide dtd."),
     .min = 16, .max = 1048576},
    {ROW(users.metrics_mib, SCHEMA_INT, "4096",
         "Maximum size in MiB of the metrics files of all jobs of one user of a system-wide dtd. Above it, the largest "
         "of them is thinned out."),
     .min = 1, .max = 1048576},
    {ROW(jobs.memory_percent, SCHEMA_INT, "90",
         "Memory that the jobs of a system-wide dtd may use together, in percent of this node's. A job gets as large a "
         "part of it as of the node's slots, or of its GPUs if that is more; `run.memory` can only lower it. More than "
         "100: not all of them may use their part at once. 0: no limit."),
     .min = 0, .max = 10000},
    {ROW(jobs.processes, SCHEMA_INT, "4096",
         "Maximum number of processes and threads of a job of a system-wide dtd on this node, for each of its workers. "
         "0: no limit."),
     .min = 0, .max = 1000000},
    {ROW(cluster.listen, SCHEMA_TEXT, "\"[::]:7811\"",
         "Numeric `address:port` on which a cluster node listens. A node outside a cluster does not listen."),
     .check = check_address},
    {ROW(cluster.advertise, SCHEMA_LIST, "\"\"",
         "`host:port` at which other nodes reach this node. A node in several networks has a list, such as "
         "`[\"10.0.0.1:7811\", \"[fd00::1]:7811\"]`, at most 4 with 263 bytes together. Others try them in this order. "
         "`dtctl cluster init` and `join` read it. \"\": the host name and the port of `cluster.listen`."),
     .single = true, .count_offset = offsetof(struct node_conf, cluster.n_advertise), .check = check_address},
    {ROW(cluster.fabric, SCHEMA_TEXT, "\"\"",
         "Host, without a port, at which workers of other nodes reach the workers of this node, where that is another "
         "network than that of the daemons. \"\": the first host of `cluster.advertise`."),
     .check = check_host},
    {ROW(cluster.ports, SCHEMA_TEXT, "\"\"",
         "Ports on which workers of this node listen for those of other nodes, such as `7900-7999`, and which are "
         "given "
         "out as MASTER_PORT. The same on all nodes. \"\": any. `run.ports` of a job replaces it."),
     .check = check_ports},
    {ROW(cluster.domain, SCHEMA_TEXT, "\"\"",
         "Failure domain of this node, such as a rack or a power line. Voters are spread over failure domains."),
     .check = check_name},
    {ROW(cluster.key_file, SCHEMA_TEXT, "\"\"",
         "File with the cluster key, if every node has it in advance (Slurm). \"\": `dtctl cluster init` and `join` "
         "create and transfer the key."),
     .check = check_dir},
    {ROW(cluster.first, SCHEMA_BOOL, "false", "Whether this node creates the cluster (with `cluster.key_file`).")},
    {ROW(cluster.peers, SCHEMA_LIST, "[]",
         "Nodes through which this node joins the cluster, as `host:port` (with `cluster.key_file`)."),
     .count_offset = offsetof(struct node_conf, cluster.n_peers), .check = check_address},
    {ROW(web.listen, SCHEMA_TEXT, "\"\"",
         "Numeric `address:port` on which dtd-web serves the web page, such as `127.0.0.1:7812`. An address that is "
         "not "
         "of the loopback interface needs `web.certificate`. \"\": it does not run."),
     .check = check_address_or_none},
    {ROW(web.certificate, SCHEMA_TEXT, "\"\"", "PEM file with the certificate of dtd-web, and those that signed it."),
     .check = check_dir},
    {ROW(web.key, SCHEMA_TEXT, "\"\"", "PEM file with the private key of `web.certificate`."), .check = check_dir},
    {ROW(web.user, SCHEMA_TEXT, "\"\"",
         "User that dtd-web of a system-wide dtd runs as, neither root nor `user`. \"\": `nobody`."),
     .check = check_user},
    {ROW(web.operators, SCHEMA_LIST, "[]",
         "Users to whom the web page of a system-wide dtd shows the jobs of all users whole, with their logs. They "
         "cancel only their own. Root is always one."),
     .count_offset = offsetof(struct node_conf, web.n_operators), .check = check_user},
};

static const struct schema_section sections[] = {
    {"log", "Logging."},
    {"snapshot", "The replicated log of the cluster's state."},
    {"disk", "Disk space of the state folder."},
    {"users", "What one user of a system-wide dtd may have. Root has no limits. For jobs, the configuration of the "
              "leader counts; "
              "for connections and stores, that of the node to which a program connects."},
    {"jobs", "Limits of jobs on this node, where control groups are delegated to dtd (under systemd they are)."},
    {"cluster", "Cluster of several nodes."},
    {"web", "The web page."},
};

const struct schema node_schema = {
    .title = "dtd's configuration",
    .intro =
        "`dtd --config FILE` reads one YAML file; every key has a default. This page is generated from the table in\n"
        "`common/conf/node.c` by `ninja manuals`.",
    .sections = sections,
    .n_sections = sizeof(sections) / sizeof(sections[0]),
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .size = sizeof(struct node_conf),
};

/* The file as it is installed has only comments; YAML without content would be an error. */
static bool only_comments(const char *text, size_t len)
{
    for (const char *p = text, *end = text + len; p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p)), *stop = nl ? nl : end;
        while (p < stop && (*p == ' ' || *p == '\t' || *p == '\r'))
            p++;
        if (p < stop && *p != '#')
            return false;
        p = nl ? nl + 1 : end;
    }
    return true;
}

static err_t parse(const char *file, const char *text, size_t len, struct node_conf *ret, struct why *why)
{
    struct node_conf conf;
    struct schema_reader r;
    why_set(why, OK, "%s", err_text(ERR_NOMEM));
    err_t err = schema_start(&r, &node_schema, file, &conf, why);
    if (!err && text && !only_comments(text, len))
        err = schema_read(&r, text, len, why);
    if (err) {
        node_conf_fini(&conf);
        return err;
    }
    *ret = conf;
    return OK;
}

err_t node_conf_parse(const char *file, const char *text, size_t len, struct node_conf *ret, struct why *why)
{
    return parse(file, text ? text : "", len, ret, why);
}

err_t node_conf_read(const char *path, struct node_conf *ret, struct why *why)
{
    struct buf text = {0};
    if (!path)
        return node_conf_default(ret, why);
    err_t err = file_read(path, MAX_FILE_BYTES, &text);
    if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    else
        err = node_conf_parse(path, (const char *)text.data, text.len, ret, why);
    buf_fini(&text);
    return err;
}

err_t node_conf_default(struct node_conf *ret, struct why *why)
{
    return parse("defaults", NULL, 0, ret, why);
}

void node_conf_fini(struct node_conf *conf)
{
    schema_fini(&node_schema, conf);
}

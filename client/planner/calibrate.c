/* dtctl plan --calibrate: dt-worker measures, because dtctl has no kernels; here its figures become a machine file, and
 * its times of operations a table beside it. The table is written first, so that no machine file names a table that is
 * not there. Then the forecasts with both are judged by the steps that dt-worker held out (judge.h).
 *
 * A machine file has one part of the peak that products reach, for all types. That of float32 is measured, and the
 * peaks of the other types are written so that the rate which the planner uses is the measured one. */
#include "client/planner/judge.h"

#include "client/daemon.h"
#include "client/json.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/plan/estimate/table.h"
#include "common/plan/search/interval.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Other programs that have a smaller part of the cores disturb a clock little: a daemon here, an editor there. */
#define IDLE 0.1

/* ---- the worker ---- */

static double number(const json_t *measured, const char *name)
{
    return json_number_value(json_object_get(measured, name));
}

#define BAR 24

/* "Measuring memory  [######------------------] 25 %, about 45s left" */
static void show_progress(struct out_progress *p, int64_t began_ms, const json_t *line)
{
    char text[256], bar[BAR + 1], left[OUT_NUMBER];
    const double share = json_number_value(json_object_get(line, "share"));
    const double passed = (double)(clock_mono_ms() - began_ms) / 1000;
    out_bar(share, BAR, bar, sizeof(bar));
    int n = snprintf(text, sizeof(text), "%s %3.0f %%", bar, 100 * share);
    if (share > 0.05) { /* an estimate from less is none */
        const double estimate = passed * (1 - share) / share, most = number(line, "limit_s") - passed;
        n += snprintf(text + n, sizeof(text) - (size_t)n, ", about %s left",
                      out_duration(most > 0 && most < estimate ? most : estimate, left));
    }
    snprintf(text + n, sizeof(text) - (size_t)n, ": measuring %s", json_string_value(json_object_get(line, "doing")));
    if (p->terminal)
        out_progress_draw(p, clock_mono_ms(), text);
}

/* The last line is the result; the others name what is being measured. */
static json_t *read_lines(FILE *f)
{
    struct out_progress progress;
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    json_t *last = NULL;
    const int64_t began_ms = clock_mono_ms();
    out_progress_init(&progress, stderr);
    while ((n = getline(&line, &size, f)) > 0) {
        json_decref(last);
        last = json_loadb(line, (size_t)n, 0, NULL);
        if (last && json_object_get(last, "doing"))
            show_progress(&progress, began_ms, last);
    }
    out_progress_clear(&progress);
    free(line);
    return last;
}

/* A worker that fails has printed its reason on standard error, with its exit status. */
static err_t run_worker(bool brief, const char *folder, json_t **ret, int *ret_code, struct why *why)
{
    char program[PATH_MAX];
    int fds[2], status = 0;
    err_t err = daemon_program("dt-worker", program, sizeof(program), why);
    if (err)
        return err;
    if (pipe2(fds, O_CLOEXEC))
        return err_from_errno(errno);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* its pipe has no reader then */
        dup2(fds[1], STDOUT_FILENO);
        execl(program, "dt-worker", "--measure", "--folder", folder, brief ? "--brief" : NULL, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    FILE *f = pid > 0 ? fdopen(fds[0], "r") : NULL;
    json_t *last = f ? read_lines(f) : NULL;
    if (f)
        fclose(f);
    else
        close(fds[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    *ret_code = pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_ERROR;
    if (*ret_code == EXIT_DONE && json_object_get(last, "figures")) {
        *ret = last;
        return OK;
    }
    json_decref(last);
    return why_set(why, ERR_IO, "dt-worker --measure has failed");
}

/* ---- the file ---- */

static double figure(const json_t *measured, const char *name)
{
    return json_number_value(json_object_get(json_object_get(measured, "figures"), name));
}

/* Foreign text, such as a processor's name: YAML in double quotes reads what JSON writes. The caller frees it. */
static char *quoted(const char *text)
{
    json_t *string = json_string(text);
    char *ret = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    return ret;
}

static bool is_busy(const json_t *measured)
{
    return number(measured, "busy") > IDLE;
}

/* Every report prints it, so that a machine that was busy is not forgotten. */
static void source_text(const json_t *measured, char *text, size_t size)
{
    char date[16];
    const time_t now = (time_t)(clock_wall_ms() / 1000);
    struct tm tm;
    strftime(date, sizeof(date), "%F", gmtime_r(&now, &tm));
    const int cores = (int)json_integer_value(json_object_get(measured, "cores"));
    const int n = snprintf(text, size, "measured %s on %s, %d core%s, by dtd %s", date,
                           json_string_value(json_object_get(measured, "cpu")), cores, cores == 1 ? "" : "s",
                           json_string_value(json_object_get(measured, "version")));
    if (is_busy(measured) && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, ", while other programs had %.0f %% of their time",
                 100 * number(measured, "busy"));
}

/* The part of the peak; a processor that runs faster for a moment could give more than all of it. */
static double product_part(const json_t *measured)
{
    const double part = figure(measured, "product_float32") / figure(measured, "peak_float32");
    return part > 1 ? 1 : part < 0.01 ? 0.01 : part;
}

/* Appends the rates. */
static err_t print_rates(const json_t *measured, const char *source, const char *times, struct buf *ret)
{
    const double cores = number(measured, "cores"), part = product_part(measured);
    return buf_printf(
        ret,
        "# Written by dtctl plan --calibrate; its manual page is docs/use/machines.md. Rates are those of one core\n"
        "# while all cores work. bf16_tflops and f64_tflops are what products reach, divided by device.product.\n"
        "# Storage is that of %s.\n"
        "name: this node\nsource: %s\ntimes: %s\nnodes: 1\n"
        "device: {per_node: %.0f, memory_gib: %.4g, bandwidth_gb: %.4g, bf16_tflops: %.4g, f32_tflops: %.4g,\n"
        "         f64_tflops: %.4g, product: %.3g, copy: 1, launch_us: %.3g, call_us: 0, one_thread: true}\n"
        "link: {bandwidth_gb: %.4g, latency_us: %.3g}\nnetwork: {bandwidth_gb: 0}\ncost: {restart_s: 0}\n"
        "storage: {bandwidth_gb: %.3g, read_gb: %.3g, copy_gb: %.4g}\n",
        json_string_value(json_object_get(measured, "folder")), source, times, cores,
        number(measured, "memory_bytes") / cores / (1 << 30), figure(measured, "memory") / 1e9,
        figure(measured, "product_bfloat16") / part / 1e12, figure(measured, "product_float32") / part / 1e12,
        figure(measured, "product_float64") / part / 1e12, part, figure(measured, "operation_s") * 1e6,
        figure(measured, "link") / 1e9, figure(measured, "collective_s") * 1e6, figure(measured, "storage") / 1e9,
        figure(measured, "storage_read") / 1e9, figure(measured, "copy") / 1e9);
}

static err_t print_errors(const struct planner_errors *e, struct buf *ret)
{
    return buf_printf(
        ret,
        "error: {less: %.3g, more: %.3g, program_less: %.3g, program_more: %.3g,\n"
        "        source: \"judged by steps of %d layouts of other models than those that were measured, timed "
        "by %s\"}\n",
        e->less, e->more, e->program_less, e->program_more, e->layouts,
        e->by_clock ? "the clock" : "the processor time of their operations, since other programs ran");
}

/* The machine of the rates, with the table under the path at which it lies. */
static err_t rates_machine(const struct buf *text, const char *table, struct machine *ret, struct why *why)
{
    struct machine m = {0};
    char *path = strdup(table);
    err_t err =
        path ? machine_parse("the machine file", (const char *)text->data, text->len, NULL, 0, &m, why) : ERR_NOMEM;
    if (err) {
        free(path);
        return err;
    }
    free(m.times);
    m.times = path;
    *ret = m;
    return OK;
}

/* `table`: path of the table, "" without one; `name`: how the machine file names it. */
static err_t machine_text(const json_t *measured, const char *table, const char *name, struct buf *ret, struct why *why)
{
    char text[512];
    struct machine m = {0};
    struct planner_errors errors;
    source_text(measured, text, sizeof(text));
    char *source = quoted(text), *times = quoted(name);
    err_t err = source && times ? print_rates(measured, source, times, ret) : ERR_NOMEM;
    free(source);
    free(times);
    err = err ? err : rates_machine(ret, table, &m, why);
    err = err ? err : planner_judge(json_object_get(measured, "layouts"), !is_busy(measured), &m, &errors, why);
    machine_fini(&m);
    return err ? err : print_errors(&errors, ret);
}

err_t planner_calibrated_path(char *ret, size_t size, struct why *why)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    const bool xdg = config && config[0] == '/';
    if (!xdg && !(home && home[0] == '/'))
        return why_set(why, ERR_INVALID, "neither XDG_CONFIG_HOME nor HOME is set: name the machine file");
    const int n = snprintf(ret, size, "%s%s/dtd/machine.yaml", xdg ? config : home, xdg ? "" : "/.config");
    return n < 0 || (size_t)n >= size ? why_set(why, ERR_LIMIT, "the path of the machine file is too long") : OK;
}

/* Only dtd's own folder is made; a folder that the user names must be there. Called before measuring, so that no user
 * waits for a file that cannot be written. */
static err_t check_folder(const char *path, bool own, struct why *why)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof(copy), "%s", path);
    const char *folder = dirname(copy);
    err_t err = own ? file_make_dirs(folder, 0755) : OK;
    if (!err && access(folder, W_OK | X_OK))
        err = err_from_errno(errno);
    return err ? why_set(why, err, "cannot write %s: folder %s: %s", path, folder, strerror(errno)) : OK;
}

static void print_storage(FILE *f, const json_t *measured, const struct machine *m)
{
    fprintf(f, "  Storage    %.3g GB/s written, %.3g GB/s read%s, in %s\n", m->storage.bandwidth_gb, m->storage.read_gb,
            figure(measured, "storage_cached") > 0 ? " (the file system keeps files in memory)" : "",
            json_string_value(json_object_get(measured, "folder")));
}

/* Nine of ten steps by the forecasts of a program and of the closed form. */
static void print_intervals(FILE *f, const struct machine *m)
{
    const struct plan_interval form = plan_forecast_interval(m, 1);
    fprintf(f,
            "  Forecasts  nine of ten steps take %.2f to %.2f of the forecast of dtctl plan FILE, and %.2f to %.2f of "
            "that of --search and all other reports, %s\n",
            1 - m->error.program_less, 1 + m->error.program_more, form.low, form.high, m->error.source);
}

static void print_busy(FILE *f, const json_t *measured)
{
    const int hurried = (int)number(measured, "hurried"), left_out = (int)number(measured, "left_out"),
              turns = (int)number(measured, "turns");
    if (is_busy(measured))
        fprintf(
            f,
            "  %sBusy%s       other programs had %.0f %% of the cores' time. Links and intervals may be worse than on "
            "an idle machine: repeat the command when it is idle\n",
            out_color(stdout, OUT_YELLOW), out_color(stdout, OUT_PLAIN), 100 * number(measured, "busy"));
    if (hurried)
        fprintf(f, "  Late       %d of %d measurements were repeated less often\n", hurried, turns);
    if (left_out)
        fprintf(f,
                "  Left out   %d of %d measurements, for which there was no time: those operations have rates only\n",
                left_out, turns);
}

static void print_machine(const char *path, const json_t *measured, const struct machine *m)
{
    char took[OUT_NUMBER];
    struct out_page page;
    out_page_begin(&page);
    fprintf(page.f, "%s: %s, in %s\n", path, m->source, out_duration(number(measured, "seconds"), took));
    fprintf(page.f,
            "  Products   %.4g GFLOP/s of a core in float32 (%.0f %% of its peak), %.4g in bfloat16, %.4g in float64\n",
            m->device.f32_tflops * m->device.product * 1e3, 100 * m->device.product,
            m->device.bf16_tflops * m->device.product * 1e3, m->device.f64_tflops * m->device.product * 1e3);
    fprintf(page.f, "  Memory     %.4g GB/s of a core while all cores work\n", m->device.bandwidth_gb);
    fprintf(page.f, "  Operations take at least %.3g us\n", m->device.launch_us);
    fprintf(page.f, "  Links      %.4g GB/s between the cores; collectives take at least %.3g us\n",
            m->link.bandwidth_gb, m->link.latency_us);
    print_storage(page.f, measured, m);
    print_intervals(page.f, m);
    if (m->times[0])
        fprintf(page.f, "  Table      times of operations by size, in %s\n", m->times);
    else
        fprintf(page.f, "  Table      none: forecasts follow from the rates above\n");
    print_busy(page.f, measured);
    out_page_end(&page, stdout);
}

static err_t replace(const char *path, const void *text, size_t len, struct why *why)
{
    err_t err = file_replace(path, text, len, 0644);
    return err ? why_set(why, err, "cannot write %s: %s", path, err_text(err)) : OK;
}

/* "machine.yaml" has the table machine.times. */
static bool times_path(const char *path, char *ret, size_t size)
{
    const size_t len = strlen(path), end = strlen(".yaml");
    const bool yaml = len > end && strcmp(path + len - end, ".yaml") == 0;
    const int n = snprintf(ret, size, "%.*s.times", (int)(yaml ? len - end : len), path);
    return n >= 0 && (size_t)n < size;
}

static err_t write_times(const char *path, const json_t *measured, struct why *why)
{
    const char *rows = json_string_value(json_object_get(measured, "table"));
    struct plan_table table = {0};
    struct buf text = {0};
    char source[512];
    source_text(measured, source, sizeof(source));
    err_t err = buf_printf(&text,
                           "dtd times 1\n# Written by dtctl plan --calibrate: %s.\n"
                           "# operation, type, form, ranks, size, seconds: median, lower and upper quartile\n%s",
                           source, rows);
    err = err ? err
              : plan_table_read((const char *)text.data, text.len, path, &table, why); /* what we write we can read */
    err = err ? err : replace(path, text.data, text.len, why);
    plan_table_fini(&table);
    buf_fini(&text);
    return err;
}

/* Without a table, a machine file names none: both texts are "". */
static err_t write_table(const char *path, const json_t *measured, char ret_path[PATH_MAX], char ret_name[PATH_MAX],
                         struct why *why)
{
    char copy[PATH_MAX];
    ret_path[0] = ret_name[0] = 0;
    if (!json_object_get(measured, "table"))
        return OK;
    if (!times_path(path, ret_path, PATH_MAX))
        return why_set(why, ERR_LIMIT, "%s: the path is too long", path);
    snprintf(copy, sizeof(copy), "%s", ret_path);
    snprintf(ret_name, PATH_MAX, "%s", basename(copy));
    return write_times(ret_path, measured, why);
}

static json_t *machine_json(const char *path, const json_t *measured, const struct machine *m)
{
    json_t *error = json_pack("{s:f, s:f, s:f, s:f, s:s}", "less", m->error.less, "more", m->error.more, "program_less",
                              m->error.program_less, "program_more", m->error.program_more, "source", m->error.source);
    return json_pack("{s:s, s:s, s:f, s:f, s:O, s:O, s:O, s:O, s:o, s:O}", "file", path, "source", m->source, "busy",
                     number(measured, "busy"), "seconds", number(measured, "seconds"), "hurried",
                     json_object_get(measured, "hurried"), "left_out", json_object_get(measured, "left_out"), "turns",
                     json_object_get(measured, "turns"), "folder", json_object_get(measured, "folder"), "error", error,
                     "measured", json_object_get(measured, "figures"));
}

static err_t write_machine(struct global *g, const char *path, const json_t *measured, struct why *why)
{
    char table[PATH_MAX], name[PATH_MAX];
    struct buf text = {0};
    struct machine m = {0};
    err_t err = write_table(path, measured, table, name, why);
    err = err ? err : machine_text(measured, table, name, &text, why);
    /* what we write we can read */
    err = err ? err : machine_parse(path, (const char *)text.data, text.len, NULL, 0, &m, why);
    err = err ? err : replace(path, text.data, text.len, why);
    if (!err && g->format == OUT_TEXT)
        print_machine(path, measured, &m);
    else if (!err)
        err = out_json(machine_json(path, measured, &m), g->format == OUT_JSONL);
    buf_fini(&text);
    machine_fini(&m);
    return err;
}

/* The folder for checkpoints, also before measuring. */
static err_t check_storage(const char *folder, struct why *why)
{
    if (access(folder, W_OK | X_OK) == 0)
        return OK;
    err_t err = err_from_errno(errno);
    return why_set(why, err, "cannot measure storage in folder %s: %s; --folder names the folder for checkpoints",
                   folder, strerror(errno));
}

err_t planner_calibrate(struct global *g, const struct planner_calibration *c, int *ret_code, struct why *why)
{
    char path[PATH_MAX];
    const char *folder = c->folder ? c->folder : ".";
    json_t *measured = NULL;
    err_t err = OK;
    if (c->file)
        snprintf(path, sizeof(path), "%s", c->file);
    else
        err = planner_calibrated_path(path, sizeof(path), why);
    err = err ? err : check_folder(path, !c->file, why);
    err = err ? err : check_storage(folder, why);
    err = err ? err : run_worker(c->brief, folder, &measured, ret_code, why);
    err = err ? err : write_machine(g, path, measured, why);
    json_decref(measured);
    return err;
}

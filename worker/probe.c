/* The facts come from /proc/cpuinfo (the entry of the first processor represents all), sysconf and the CPU affinity of
 * this process. */
#include "worker/probe.h"

#include "common/base/buf.h"
#include "common/base/cpus.h"
#include "common/base/file.h"
#include "kernels/kernels.h"
#include "worker/probe_gpu.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CPUINFO_MAX (16 << 20)

/* The instruction sets that dtd's compute kernels can use. */
static const char *const interesting[] = {"avx2",        "fma",      "avx512f",  "avx512bw", "avx512_vnni",
                                          "avx512_bf16", "amx_tile", "amx_bf16", "asimd",    "sve"};

/* The value of the first line that begins with `key`, up to its end; NULL when there is none. */
static const char *find_line(const char *text, const char *key, size_t *ret_len)
{
    const char *at = strstr(text, key);
    at = at ? strchr(at, ':') : NULL;
    if (!at)
        return NULL;
    at += strspn(at, ": \t");
    *ret_len = strcspn(at, "\n");
    return at;
}

static bool has_word(const char *line, size_t len, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = line; (at = memmem(at, len - (size_t)(at - line), word, n)) != NULL; at += n) {
        bool begins = at == line || at[-1] == ' ', ends = at + n == line + len || at[n] == ' ';
        if (begins && ends)
            return true;
    }
    return false;
}

static json_t *features(const char *cpuinfo)
{
    size_t len = 0;
    const char *line = find_line(cpuinfo, "flags", &len);
    if (!line)
        line = find_line(cpuinfo, "Features", &len);
    json_t *list = json_array();
    for (size_t i = 0; line && i < sizeof(interesting) / sizeof(interesting[0]); i++)
        if (has_word(line, len, interesting[i]))
            json_array_append_new(list, json_string(interesting[i]));
    return list;
}

static json_t *facts(const char *cpuinfo)
{
    size_t len = 0;
    const char *model = find_line(cpuinfo, "model name", &len);
    int usable = cpus_usable(NULL, 0);
    const struct kern_ops *fast = kern_find("cpu", DT_F32);
    return json_pack("{s:s, s:{s:o, s:I, s:I, s:o}, s:{s:I, s:I}, s:{s:s}}", "version", DTD_VERSION, "cpu", "model",
                     json_stringn(model ? model : "unknown", model ? len : 7), "cores",
                     (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "usable", (json_int_t)(usable ? usable : 1), "features",
                     features(cpuinfo), "memory", "total_bytes",
                     (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE), "available_bytes",
                     (json_int_t)sysconf(_SC_AVPHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE), "kernels", "float32",
                     fast ? fast->name : "ref");
}

/* Takes ownership of `root`, which may be NULL. */
static err_t complete_and_print(json_t *root, err_t (*complete)(json_t *root), struct why *why)
{
    err_t err = root ? complete(root) : ERR_NOMEM;
    if (err || json_dumpf(root, stdout, JSON_INDENT(1)) || puts("") < 0)
        err = why_set(why, ERR_IO, "cannot print the facts");
    json_decref(root);
    return err;
}

err_t probe_print(struct why *why)
{
    struct buf cpuinfo = {0};
    err_t err = file_read("/proc/cpuinfo", CPUINFO_MAX, &cpuinfo);
    if (!err)
        err = buf_append(&cpuinfo, "", 1);
    if (err) {
        buf_fini(&cpuinfo);
        return why_set(why, err, "cannot read /proc/cpuinfo: %s", err_text(err));
    }
    json_t *root = facts((const char *)cpuinfo.data);
    buf_fini(&cpuinfo);
    return complete_and_print(root, probe_gpus, why);
}

err_t probe_health_print(struct why *why)
{
    return complete_and_print(json_pack("{s:s}", "version", DTD_VERSION), probe_health, why);
}

/* Folders as datasets 5.2 writes them. Its own folders are read in tests/interop. */
#include "common/data/datasets.h"
#include "common/data/tables.h"
#include "tests/common/data/files.h"

#include <errno.h>
#include <sys/file.h>

static const char *folder(const char *name)
{
    char *path = file_path(name);
    assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
    return path;
}

static void assert_files(const char *dir, int n, const char *first, const char *last)
{
    char **paths;
    int got;
    struct why why = {0};
    assert_true(datasets_is_folder(dir));
    if (datasets_files(dir, &paths, &got, &why))
        fail_msg("%s", why.text);
    assert_int_equal(got, n);
    assert_string_equal(paths[0], file_path(first));
    assert_string_equal(paths[n - 1], file_path(last));
    data_paths_free(paths, got);
}

static void assert_refused(const char *dir, err_t want, const char *part)
{
    char **paths;
    int n;
    struct why why = {0};
    assert_err(want, datasets_files(dir, &paths, &n, &why));
    if (!strstr(why.text, part))
        fail_msg("'%s' does not contain '%s'", why.text, part);
}

TEST(save_to_disk)
{
    const char *dir = folder("s");
    assert_false(datasets_is_folder(dir));
    file_make_text("s/b.arrow", "");
    file_make_text("s/a.arrow", "");
    file_make_text("s/c.arrow", "");
    file_make_text("s/state.json", "{\"_data_files\": [{\"filename\": \"b.arrow\"}, {\"filename\": \"a.arrow\"}]}");
    assert_files(dir, 2, "s/b.arrow", "s/a.arrow"); /* the order of the state */
    file_make_text("s/state.json", "{\"_data_files\": [{\"filename\": \"d.arrow\"}]}");
    assert_refused(dir, ERR_INVALID, "d.arrow: it is missing");
    file_make_text("s/state.json", "{\"_data_files\": [{\"filename\": \"../s/a.arrow\"}]}");
    assert_refused(dir, ERR_CORRUPT, "no file of this folder");
    file_make_text("s/state.json", "{\"_data_files\": []}");
    assert_refused(dir, ERR_INVALID, "no data files");
    file_make_text("s/state.json", "{\"_data_files\"");
    assert_refused(dir, ERR_CORRUPT, "state.json: it is not a JSON object");
    file_make_text("s/state.json", "{}");
    assert_refused(dir, ERR_CORRUPT, "no list _data_files");
    file_make_text("s/state.json",
                   "{\"_data_files\": [{\"filename\": \"a.arrow\"}], \"_indices_files\": [{\"filename\": "
                   "\"i.arrow\"}]}");
    assert_refused(dir, ERR_UNSUPPORTED, "flatten_indices()");
    file_make_text("s/state.json", "{\"_data_files\": [{\"filename\": \"a.arrow\"}], \"_indices_files\": []}");
    assert_files(dir, 1, "s/a.arrow", "s/a.arrow");
}

TEST(dict_of_splits)
{
    const char *dir = folder("d");
    folder("d/train");
    file_make_text("d/train/a.arrow", "");
    file_make_text("d/train/state.json", "{\"_data_files\": [{\"filename\": \"a.arrow\"}]}");
    file_make_text("d/dataset_dict.json", "{\"splits\": [\"train\"]}");
    assert_files(dir, 1, "d/train/a.arrow", "d/train/a.arrow");
    file_make_text("d/dataset_dict.json", "{\"splits\": [\"train\", \"test\"]}");
    assert_refused(dir, ERR_INVALID, "it has the splits train, test; name the folder of one");
    file_make_text("d/dataset_dict.json", "{\"splits\": [\"other\"]}");
    assert_refused(dir, ERR_INVALID, "no state.json");
}

TEST(cache_of_a_builder)
{
    char slash[PATH_MAX];
    const char *dir = folder("c");
    file_make_text("c/text-train.arrow", "");
    file_make_text("c/cache-train.arrow", "");
    file_make_text("c/dataset_info.json", "{\"splits\": {\"train\": {\"num_examples\": 4}}}");
    assert_files(dir, 1, "c/text-train.arrow", "c/text-train.arrow");
    snprintf(slash, sizeof(slash), "%s//", dir);
    assert_files(slash, 1, "c/text-train.arrow", "c/text-train.arrow");
    file_make_text("c/dataset_info.json", "{\"splits\": {\"train\": {\"shard_lengths\": [3, 2]}}}");
    assert_refused(dir, ERR_INVALID, "no file whose name ends with -train-00000-of-00002.arrow");
    file_make_text("c/text-train-00000-of-00002.arrow", "");
    assert_refused(dir, ERR_INVALID, "00001-of-00002.arrow: it is missing");
    file_make_text("c/text-train-00001-of-00002.arrow", "");
    assert_files(dir, 2, "c/text-train-00000-of-00002.arrow", "c/text-train-00001-of-00002.arrow");
    file_make_text("c/other-train-00000-of-00002.arrow", "");
    assert_refused(dir, ERR_INVALID, "more than one file");
    file_make_text("c/dataset_info.json", "{\"splits\": {\"train\": {}, \"test\": {}}}");
    assert_refused(dir, ERR_INVALID, "the splits train, test; name the files of one");
}

static err_t resolve(const char *pattern, char ***ret, int *ret_n, struct why *why)
{
    return data_resolve(file_path(""), (char *const[]){(char *)(uintptr_t)pattern}, 1, &table_containers, ret, ret_n,
                        NULL, why);
}

TEST(a_pattern_that_names_a_folder_names_its_files)
{
    char **paths;
    int n;
    struct why why = {0};
    folder("all");
    folder("all/[1]");
    folder("all/none");
    file_make_text("all/z.txt", "");
    file_make_text("all/none/x.txt", "");
    file_make_text("all/[1]/a.arrow", "");
    file_make_text("all/[1]/b.arrow", "");
    file_make_text("all/[1]/state.json",
                   "{\"_data_files\": [{\"filename\": \"a.arrow\"}, {\"filename\": \"b.arrow\"}]}");
    assert_ok(resolve("all/[1]", &paths, &n, &why));
    assert_int_equal(n, 2);
    assert_string_equal(paths[0], file_path("all/[1]/a.arrow"));
    assert_string_equal(paths[1], file_path("all/[1]/b.arrow"));
    data_paths_free(paths, n);
    assert_ok(resolve("all/*", &paths, &n, &why)); /* other folders are skipped */
    assert_int_equal(n, 3);
    assert_string_equal(paths[2], file_path("all/z.txt"));
    data_paths_free(paths, n);
    assert_err(ERR_NOTFOUND, resolve("all/none", &paths, &n, &why));
    file_make_text("all/[1]/state.json",
                   "{\"_data_files\": [{\"filename\": \"b.arrow\"}, {\"filename\": \"a.arrow\"}]}");
    assert_err(ERR_UNSUPPORTED, resolve("all/[1]", &paths, &n, &why));
    assert_non_null(strstr(why.text, "in the order of their names"));
}

TEST(cache_that_is_being_written)
{
    const char *dir = folder("w");
    file_make_text("w/text-train.arrow", "");
    file_make_text("w/dataset_info.json", "{\"splits\": {\"train\": {}}}");
    int fd = open(file_make_text("w_builder.lock", ""), O_RDWR);
    assert_files(dir, 1, "w/text-train.arrow", "w/text-train.arrow"); /* the file stays behind; the lock is free */
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_refused(dir, ERR_BUSY, "datasets is writing this folder");
    close(fd);
    folder("w.incomplete");
    assert_refused(dir, ERR_BUSY, "datasets is writing this folder");
    file_make_text("w.incomplete/dataset_info.json", "{\"splits\": {\"train\": {}}}");
    assert_refused(file_path("w.incomplete"), ERR_BUSY, "datasets is writing this folder");
}

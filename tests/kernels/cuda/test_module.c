/* Tests dtd-cuda.so as linked against the vendor's libraries, on a machine with or without a GPU. */
#include "tests/lib/test.h"

#include "kernels/device.h"
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>

static const char *module_path(void)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/dtd-cuda.so", getenv("DTD_BIN"));
    return path;
}

static void *module_open(void)
{
    void *handle = dlopen(module_path(), RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail_msg("%s", dlerror());
    return handle;
}

/* The dynamic section of a shared object as the loader keeps it. */
struct dynamic {
    const char *strings;
    const ElfW(Sym) * symbols;
    const uint32_t *gnu_hash;
    const ElfW(Dyn) * rows;
};

static struct dynamic dynamic_of(void *handle)
{
    struct link_map *map;
    struct dynamic d = {0};
    assert_int_equal(dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
    d.rows = map->l_ld;
    for (const ElfW(Dyn) *p = d.rows; p->d_tag != DT_NULL; p++) {
        if (p->d_tag == DT_STRTAB)
            d.strings = (const char *)p->d_un.d_ptr;
        else if (p->d_tag == DT_SYMTAB)
            d.symbols = (const ElfW(Sym) *)p->d_un.d_ptr;
        else if (p->d_tag == DT_GNU_HASH)
            d.gnu_hash = (const uint32_t *)p->d_un.d_ptr;
    }
    assert_non_null(d.strings);
    assert_non_null(d.symbols);
    assert_non_null(d.gnu_hash);
    return d;
}

static bool needs(const struct dynamic *d, const char *beginning)
{
    for (const ElfW(Dyn) *p = d->rows; p->d_tag != DT_NULL; p++)
        if (p->d_tag == DT_NEEDED && strncmp(d->strings + p->d_un.d_val, beginning, strlen(beginning)) == 0)
            return true;
    return false;
}

/* Exported symbols are those in the hash table; every chain ends with an odd hash. */
static int exported(const struct dynamic *d, const char **ret_name)
{
    uint32_t n_buckets = d->gnu_hash[0], first = d->gnu_hash[1], bloom_words = d->gnu_hash[2];
    const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)(d->gnu_hash + 4) + bloom_words);
    const uint32_t *chain = buckets + n_buckets;
    int n = 0;
    for (uint32_t i = 0; i < n_buckets; i++) {
        for (uint32_t at = buckets[i]; at != 0; at++) {
            *ret_name = d->strings + d->symbols[at].st_name;
            n++;
            if (chain[at - first] & 1)
                break;
        }
    }
    return n;
}

TEST(exports_its_one_symbol)
{
    void *handle = module_open();
    struct dynamic d = dynamic_of(handle);
    const char *name = "";
    int n = exported(&d, &name);
    assert_string_equal(name, "dtd_cuda_module");
    assert_int_equal(n, 1);
}

TEST(needs_the_vendors_libraries)
{
    void *handle = module_open();
    struct dynamic d = dynamic_of(handle);
    assert_true(needs(&d, "libcudart.so."));
    assert_true(needs(&d, "libcublasLt.so."));
    assert_false(needs(&d, "libcuda.so.")); /* machines that only build have no driver */
    assert_false(needs(&d, "libnccl.so."));
}

/* Every field of the table must be a pointer that is not NULL. */
static void check_pointers(const void *from, size_t bytes)
{
    void *const *p = from;
    for (size_t i = 0; i < bytes / sizeof(void *); i++)
        assert_non_null(p[i]);
}

TEST(tables_are_whole)
{
    const struct dev_module *m = dlsym(module_open(), "dtd_cuda_module");
    const size_t first = offsetof(struct kern_ops, gemm), device = offsetof(struct dev_ops, count);
    assert_non_null(m);
    assert_int_equal(m->abi, DEV_MODULE_ABI);
    assert_string_equal(m->device->name, "cuda");
    assert_false(m->device->host_memory);
    check_pointers((const char *)m->device + device, sizeof(struct dev_ops) - device);
    const enum dtype types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        const struct kern_ops *ops = m->device->kernels(types[i]);
        assert_non_null(ops);
        assert_string_equal(ops->name, "cuda");
        assert_int_equal(ops->dtype, types[i]);
        assert_int_equal(ops->wide, DT_F32);
        check_pointers((const char *)ops + first, sizeof(struct kern_ops) - first);
    }
    assert_null(m->device->kernels(DT_F64));
}

/* The loader finds the module beside the programs, and a sentence names the missing part. */
TEST(a_machine_without_gpus_gets_an_error)
{
    struct why why = {""};
    struct dev *d = NULL;
    int n = -1;
    assert_int_equal(setenv("DTD_MODULE_DIR", getenv("DTD_BIN"), 1), 0);
    err_t err = dev_count("cuda", &n, &why);
    if (err == OK && n > 0)
        TEST_SKIP("this machine has %d GPUs", n);
    if (err != OK) {
        assert_err(ERR_UNSUPPORTED, err);
        assert_non_null(strstr(why.text, "driver"));
    }
    why.text[0] = '\0';
    assert_err(ERR_UNSUPPORTED, dev_open("cuda", 0, &d, &why));
    assert_null(d);
    assert_non_null(strstr(why.text, "driver"));
    printf("%s\n", why.text);
}

TEST(a_device_that_is_not_there_is_not_opened)
{
    struct why why = {""};
    struct dev *d = NULL;
    int n = 0;
    assert_int_equal(setenv("DTD_MODULE_DIR", getenv("DTD_BIN"), 1), 0);
    if (dev_count("cuda", &n, &why) != OK || n == 0)
        TEST_SKIP("%s", why.text[0] ? why.text : "no GPU here");
    assert_err(ERR_NOTFOUND, dev_open("cuda", n, &d, &why));
    assert_err(ERR_NOTFOUND, dev_open("cuda", -1, &d, &why));
}

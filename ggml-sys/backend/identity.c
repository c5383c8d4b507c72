// Which sources a backend library was built from: the program asks before it calls anything else of the library.
#if defined(_WIN32)
__declspec(dllexport)
#else
__attribute__((visibility("default")))
#endif
const char bench_backend_identity[] = BENCH_IDENTITY;

#ifdef BENCH_READS_TABLES
// The library has attention by block tables (shim_device_attention in src/attention.h).
#if defined(_WIN32)
__declspec(dllexport)
#else
__attribute__((visibility("default")))
#endif
const int bench_backend_reads_tables = 1;
#endif

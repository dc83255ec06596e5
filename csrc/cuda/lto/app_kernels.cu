// The kernels of users' applications as LTO IR (fastsample_apps.fatbin); their functions come when it is linked.
#include "app_kernels.cuh"

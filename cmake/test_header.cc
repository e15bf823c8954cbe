// Nothing of its own: what the tests include is compiled with it, see modules.cmake.

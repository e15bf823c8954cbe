#include "lab/commands.h"

int main(int argc, char** argv) {
  using namespace unisono::cli;
  return run_tool(lab_tool(), {argv + (argc > 0 ? 1 : 0), argv + argc});
}

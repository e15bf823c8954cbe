// `unisono completion`: prints the script of one shell.
#include "cli/completion.h"

#include <fmt/format.h>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/text.h"

namespace unisono::cli {
namespace {

const CommandLineText completion_text{
    .name = "unisono completion",
    .usage = "unisono completion SHELL",
    .description = "Prints what makes a shell complete commands, options and values of this tool.",
    .footer = R"(Examples:
  source <(unisono completion bash)                                    this shell; or in ~/.bashrc
  unisono completion zsh > ~/.zfunc/_unisono                           a folder of $fpath, before compinit
  unisono completion fish > ~/.config/fish/completions/unisono.fish

An installed package has them in place already.

Exit code: 0, or 2 for a wrong command line.)"};

struct Shell {
  const char* name;
  std::string (*script)(std::span<const CommandSyntax>);
};
constexpr Shell shells[] = {{"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};

std::vector<std::string> shell_names() {
  std::vector<std::string> names;
  for (const auto& shell : shells) names.emplace_back(shell.name);
  return names;
}

struct CompletionOptions {
  std::string shell;
};

void add_completion_options(CLI::App& app, CompletionOptions& options) {
  set_choices(*app.add_option("shell", options.shell, "bash, zsh or fish")->type_name("")->required(), shell_names());
}

}  // namespace

CommandSyntax completion_syntax() { return syntax_of(completion_text, add_completion_options); }

int run_completion(const Arguments& arguments) {
  CompletionOptions options;
  const auto app = make_app(completion_text);
  add_completion_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  for (const auto& shell : shells) {
    if (options.shell != shell.name) continue;
    fmt::print("{}", shell.script(command_syntaxes()));
    return 0;
  }
  return usage_error(completion_text.name, fmt::format("there is no completion for '{}'; there is for {}", options.shell,
                                                       fmt::join(shell_names(), ", ")));
}

}  // namespace unisono::cli

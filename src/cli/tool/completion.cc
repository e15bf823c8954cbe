// The command `completion` of each tool. It prints the completion script for a shell.
#include "cli/tool/completion.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/result_writer.h"
#include "cli/common/text.h"

namespace unisono::cli {
namespace {

CommandLineText completion_text(const Tool& tool) {
  return {.name = fmt::format("{} completion", tool.name),
          .usage = fmt::format("{} completion SHELL [OPTIONS]", tool.name),
          .description = "Prints a script with which a shell completes commands, options and values of this tool.",
          .footer = fmt::format(R"(Examples:
  source <({0} completion bash)                     this shell; or in ~/.bashrc
  {0} completion zsh -o ~/.zfunc/_{0}               a folder of $fpath, before compinit
  {0} completion fish -o ~/.config/fish/completions/{0}.fish

An installed package has them in place already.

Exit code: 0; 1 if the script cannot be written; 2 for a wrong command line.)",
                                tool.name)};
}

struct Shell {
  const char* name;
  std::string (*script)(std::string_view, std::span<const CommandSyntax>);
};
constexpr Shell shells[] = {{"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};

std::vector<std::string> shell_names() {
  std::vector<std::string> names;
  for (const auto& shell : shells) names.emplace_back(shell.name);
  return names;
}

struct CompletionOptions {
  std::string shell, output;
};

void add_completion_options(CLI::App& app, CompletionOptions& options) {
  set_choices(*app.add_option("shell", options.shell, "bash, zsh or fish")->type_name("")->required(), shell_names());
  add_output_file(app, options.output, "the script");
}

}  // namespace

std::string completion_function(std::string_view tool) {
  std::string name = fmt::format("_{}", tool);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

CommandSyntax completion_syntax(const Tool& tool) { return syntax_of(completion_text(tool), add_completion_options); }

int run_completion(const Tool& tool, const Arguments& arguments) {
  CompletionOptions options;
  const auto text = completion_text(tool);
  const auto app = make_app(text);
  add_completion_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  for (const auto& shell : shells) {
    if (options.shell != shell.name) continue;
    const auto written = write_result(options.output, shell.script(tool.name, command_syntaxes(tool)));
    return written.ok() ? 0 : failed(text, written);
  }
  return usage_error(text.name, fmt::format("there is no completion for '{}'; there is for {}", options.shell,
                                            fmt::join(shell_names(), ", ")));
}

}  // namespace unisono::cli

#include "cli/tool/manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "cli/common/version.h"

namespace unisono::cli {
namespace {

// Returns roff source that shows exactly this text. Characters that would begin a request or an escape of roff are quoted.
std::string plain(std::string_view text) {
  std::string out;
  if (text.starts_with('.')) out += "\\&";
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '\'': out += "\\(aq"; break;
      case '`': out += "\\(ga"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      default: out += c;
    }
  }
  return out;
}

std::string bold(std::string_view text) { return "\\fB" + plain(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + plain(text) + "\\fR"; }

// Formats one line of a table or of examples. If the line contains a gap of two blanks, the words after the gap explain the
// words before it. The manual shows this explanation below, in lines that are as wide as the terminal.
std::string table_line(std::string_view line) {
  const auto gap = line.find("  ");
  if (gap == std::string_view::npos) return ".PP\n" + plain(line) + "\n";
  const auto meaning = line.find_first_not_of(' ', gap);
  return ".TP 4\n" + plain(line.substr(0, gap)) + "\n" + plain(line.substr(std::min(meaning, line.size()))) + "\n";
}

// Formats paragraphs of help text as roff. A line that begins with two spaces remains a separate line. The other lines of a
// paragraph are joined, and the manual breaks the result into lines as wide as the terminal.
std::string paragraphs(std::string_view text) {
  std::string out;
  bool in_table = false, fresh = true;
  for (size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    at = end + 1;
    const bool of_table = line.starts_with("  ");
    if (in_table && !of_table) out += ".PD\n.RE\n";
    fresh = fresh || line.empty() || (in_table && !of_table);
    if (of_table) {
      if (!in_table) out += ".RS 2\n.PD 0\n";
      out += table_line(line.substr(2));
    } else if (!line.empty()) {
      out += (fresh ? ".PP\n" : "") + plain(line) + "\n";
      fresh = false;
    }
    in_table = of_table;
  }
  return out + (in_table ? ".PD\n.RE\n" : "");
}

std::string option_entry(const OptionSyntax& option) {
  std::string names;
  for (const auto& name : option.names)
    names += (names.empty() ? "" : ", ") + (option.positional() ? italic(name) : bold(name));
  if (!option.positional() && option.takes_value()) names += " " + italic(option.value);
  auto text = option.meaning;
  if (option.positional() && !option.choices.empty()) text += fmt::format(": {}", fmt::join(option.choices, " "));
  return ".TP\n" + names + "\n" + plain(text) + "\n";
}

std::string command_section(std::string_view tool, const CommandSyntax& command) {
  std::string text = ".SS " + bold(fmt::format("{} {}", tool, command.name)) + "\n";
  text += ".PP\n.RS 2\n.EX\n" + plain(command.usage) + "\n.EE\n.RE\n" + paragraphs(command.description);
  for (const auto& option : command.options) text += option_entry(option);
  return text + paragraphs(command.footer);
}

std::string entry(std::string_view name, std::string_view meaning) {
  return ".TP\n" + bold(name) + "\n" + plain(meaning) + "\n";
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

CommandLineText manual_text(const Tool& tool) {
  return {.name = fmt::format("{} man", tool.name),
          .usage = fmt::format("{} man [OPTIONS]", tool.name),
          .description = "Prints the manual page of this tool, in roff.",
          .footer = fmt::format(R"(Examples:
  {0} man | man -l -
  {0} man -o ~/.local/share/man/man1/{0}.1

Exit code: 0; 1 if the page cannot be written; 2 for a wrong command line.)",
                                tool.name)};
}

void add_manual_options(CLI::App& app, std::string& output) { add_output_file(app, output, "the page"); }

}  // namespace

std::string manual_page(const Tool& tool, std::span<const CommandSyntax> commands) {
  const auto& manual = tool.manual;
  auto text = fmt::format(".TH {} 1 \"\" \"Unisono {}\" \"User Commands\"\n", upper(plain(tool.name)), version_text);
  text += fmt::format(".nr HY 0\n.ad l\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n", plain(tool.name), plain(tool.title));
  for (const auto& command : commands) text += ".br\n" + plain(command.usage) + "\n";
  text += fmt::format(".br\n{0} help [COMMAND]\n.br\n{0} \\-\\-version\n", plain(tool.name));
  text += ".SH DESCRIPTION\n" + plain(manual.description) + "\n.SH COMMANDS\n";
  for (const auto& command : commands) text += entry(command.name, command.summary);
  text += ".SH OPTIONS\n";
  for (const auto& command : commands) text += command_section(tool.name, command);
  text += ".SH ENVIRONMENT\n" + plain(manual.environment) + "\n";
  for (const auto& variable : manual.variables) text += entry(variable.name, variable.meaning);
  text += ".SH EXIT STATUS\n";
  for (const auto& status : manual.exit_statuses) text += entry(status.code, status.meaning);
  text += ".SH EXAMPLES\n" + paragraphs(manual.examples);
  return text + fmt::format(".SH SEE ALSO\n{}", manual.see_also);
}

CommandSyntax manual_syntax(const Tool& tool) { return syntax_of(manual_text(tool), add_manual_options); }

int run_manual(const Tool& tool, const Arguments& arguments) {
  std::string output;
  const auto text = manual_text(tool);
  const auto app = make_app(text);
  add_manual_options(*app, output);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto written = write_result(output, manual_page(tool, command_syntaxes(tool)));
  return written.ok() ? 0 : failed(text, written);
}

}  // namespace unisono::cli

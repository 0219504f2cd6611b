//! The command `earrrl man`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;
use earrrl_logs::text::plain;

use super::CliFailure;

/// Write the manual pages, one for each command, into a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl man /usr/local/share/man/man1")]
pub(super) struct ManArgs {
    /// The folder, which must exist.
    folder: PathBuf,
}

/// The sections that end every manual page.
const LAST_SECTIONS: &str = r#".SH "EXIT STATUS"
.TP
0
Success; of \fBearrrl check\fR: the request is allowed.
.TP
1
Of \fBearrrl check\fR: the request is denied. Of \fBearrrl state\fR: a file cannot be used.
.TP
2
An error, which is printed on standard error.
.TP
3
Of commands that read logs: probably, they were not read in the format or with the client that was meant; a warning says why.
.TP
130
Of commands that read logs: Ctrl-C was pressed twice.
.SH FILES
.TP
limits.toml
The configuration, which \fB\-\-config\fR names. There is no default place.
.SH "SEE ALSO"
.BR limits.toml (5)
"#;

pub(super) fn run(args: &ManArgs, command: Command) -> Result<ExitCode, CliFailure> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&args.folder, &command)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual pages of a command and of its subcommands.
fn write_pages(folder: &Path, command: &Command) -> Result<(), CliFailure> {
    for command in command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        write_pages(folder, command)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    // The generator calls the text after the options EXTRA; in these commands that text is
    // examples.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA\n", ".SH EXAMPLES\n");
    let file = folder.join(page.get_filename());
    let failed = |error| CliFailure::new(format!("{}: {}", file.display(), plain(&error)));
    fs::write(&file, text + LAST_SECTIONS).map_err(failed)
}

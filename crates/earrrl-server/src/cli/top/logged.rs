//! A log as the source: its requests under rules to try.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use earrrl_logs::reading::{ClientNumbers, LogReader, LoggedRequest, ReadError, Selection};

use super::args::TopArgs;
use super::config_trial::ConfigTrial;
use super::rule_trial::RuleTrial;
use super::snapshot::TopSnapshot;
use super::source::ClientSource;
use super::trial::LogTrial;
use crate::cli::CliFailure;
use crate::cli::log::{self, LogArgs};
use crate::cli::progress::ReadProgress;
use crate::cli::stop::Stop;

/// The requests of a log so far.
pub(super) struct LogSource(Arc<Mutex<LogProgress>>);

struct LogProgress {
    trial: Box<dyn LogTrial>,
    status: String,
}

impl LogSource {
    /// Reads a log: on a thread of its own, or with `--once` to its end.
    pub(super) fn open(args: TopArgs) -> Result<Self, CliFailure> {
        let mut selection = args.log.selection();
        let trial: Box<dyn LogTrial> = match (&args.config, args.rule) {
            (Some(path), _) => Box::new(ConfigTrial::load(path, &mut selection)?),
            (None, Some(text)) => Box::new(RuleTrial::new(&text)?),
            (None, None) => {
                return Err(CliFailure::new("a log needs a --rule or a --config to try"));
            }
        };
        let status = "reading the log".to_owned();
        let progress = Arc::new(Mutex::new(LogProgress { trial, status }));
        if args.once {
            read_whole(&args.log, selection, &progress)?;
        } else {
            let files = args.log.files;
            let follow = args.follow;
            let shared = Arc::clone(&progress);
            let [file] = <[_; 1]>::try_from(files)
                .map_err(|files| CliFailure::new(format!("{} files; expected one", files.len())))?;
            thread::spawn(move || {
                let mut reader = LogReader::new(selection);
                let mut take = |clients: &ClientNumbers, requests: &[LoggedRequest]| {
                    take_all(&shared, clients, requests)
                };
                let ended = match follow {
                    true => reader.follow(&file, |source| source, &mut take),
                    false => reader.read(&file, |source| source, &mut take),
                };
                lock(&shared).status = status_after(ended, &reader);
            });
        }
        Ok(Self(progress))
    }
}

fn read_whole(
    args: &LogArgs,
    selection: Selection,
    progress: &Mutex<LogProgress>,
) -> Result<(), CliFailure> {
    let mut reader = LogReader::new(selection);
    let bar = ReadProgress::of(&args.files);
    let stop = Stop::on_interrupt()?;
    log::read(args, &mut reader, (&bar, &stop), |clients, requests| {
        take_all(progress, clients, requests)
    })?;
    bar.clear();
    log::warn_of_skipped_lines(&reader, args);
    lock(progress).status = "the log has ended".to_owned();
    Ok(())
}

fn take_all(
    progress: &Mutex<LogProgress>,
    clients: &ClientNumbers,
    requests: &[LoggedRequest],
) -> io::Result<()> {
    let mut progress = lock(progress);
    requests
        .iter()
        .for_each(|&request| progress.trial.take(clients, request));
    Ok(())
}

fn status_after(ended: Result<(), ReadError>, reader: &LogReader) -> String {
    match ended {
        Err(ReadError::Input(problem)) => problem,
        Err(ReadError::Output(error)) => error.to_string(),
        _ if reader.used() == 0 => format!("none of {} lines is usable", reader.lines),
        _ => "the log has ended".to_owned(),
    }
}

impl ClientSource for LogSource {
    fn snapshot(&mut self, rule: Option<&str>, limit: usize) -> Result<TopSnapshot, String> {
        let progress = lock(&self.0);
        let snapshot = progress.trial.snapshot(rule, limit)?;
        Ok(TopSnapshot {
            status: progress.status.clone(),
            ..snapshot
        })
    }

    fn reset(&mut self, rule: &str, key: &[u8]) -> Result<(), String> {
        lock(&self.0).trial.reset(rule, key)
    }
}

fn lock(progress: &Mutex<LogProgress>) -> MutexGuard<'_, LogProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Reads that are asked for at one time become one statement: the database spends less on thirty rows of one statement than on three
//! statements.
//!
//! While the database answers one, what else is asked for waits, and goes out in the next one. Whoever asks alone waits for nobody. A read
//! begins after it was asked for, so it sees what was acknowledged before.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{sync::oneshot, time::Instant};

use super::error::away;
use crate::store::Error;

/// How many statements of one kind the database has at a time.
const STATEMENTS_MAX: usize = 2;
/// How many reads become one statement: the result of a task may be large, and all of them are in memory together.
const READS_MAX: usize = 16;

/// How long the database usually says nothing when it is away.
const SILENCE: Duration = Duration::from_secs(2);
/// How many reads of a statement that failed find the database away before the others are not tried.
const AWAY_MAX: usize = 2;

/// What one statement has read: an answer for each key, in their order.
pub(super) type Many<V> = Result<Vec<Result<V, Error>>, Error>;
type ReadMany<K, V> = Arc<dyn Fn(Arc<[K]>) -> BoxFuture<'static, Many<V>> + Send + Sync>;

/// Reads of one kind.
pub(super) struct Gather<K, V> {
    read: ReadMany<K, V>,
    waiting: Arc<Mutex<Waiting<K, V>>>,
    /// After this long without an answer the database is away for all who wait.
    silence: Duration,
}

struct Waiting<K, V> {
    reads: Vec<(K, oneshot::Sender<Result<V, Error>>)>,
    /// How many statements the database has.
    statements: usize,
}

/// One of the statements at a time, until nobody waits; counts down however that ends. Nobody waits for a statement that nobody makes.
struct Slot<K, V> {
    waiting: Arc<Mutex<Waiting<K, V>>>,
    is_counted: bool,
}

impl<K, V> Drop for Slot<K, V> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting);
        waiting.statements -= usize::from(self.is_counted);
        if waiting.statements == 0 {
            waiting.reads.clear();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Clone + Send + Sync + 'static, V: Send + 'static> Gather<K, V> {
    pub(super) fn new<F: Future<Output = Many<V>> + Send + 'static>(read: impl Fn(Arc<[K]>) -> F + Send + Sync + 'static) -> Self {
        let waiting = Waiting { reads: Vec::new(), statements: 0 };
        Self { read: Arc::new(move |keys| Box::pin(read(keys))), waiting: Arc::new(Mutex::new(waiting)), silence: SILENCE }
    }

    /// Reads what is there of a key now.
    pub(super) async fn get(&self, key: K) -> Result<V, Error> {
        let (answer, answered) = oneshot::channel();
        let slot = {
            let mut waiting = lock(&self.waiting);
            waiting.reads.push((key, answer));
            let is_free = waiting.statements < STATEMENTS_MAX;
            waiting.statements += usize::from(is_free);
            is_free.then(|| Slot { waiting: self.waiting.clone(), is_counted: true })
        };
        if let Some(slot) = slot {
            // A task of its own: others wait for it when the client of this request has hung up.
            tokio::spawn(read_all(self.read.clone(), slot, self.silence));
        }
        answered.await.unwrap_or_else(|_| Err(away("a read was given up")))
    }
}

async fn read_all<K: Clone, V>(read: ReadMany<K, V>, mut slot: Slot<K, V>, silence: Duration) {
    while let Some((keys, answers)) = slot.take() {
        let began = Instant::now();
        match read(keys.clone()).await {
            Ok(values) => answers.into_iter().zip(values).for_each(|(answer, value)| drop(answer.send(value))),
            // A database that says nothing says nothing to each of them: nobody waits for that again.
            Err(Error::Away { reason, .. }) if began.elapsed() >= silence => {
                answers.into_iter().for_each(|answer| drop(answer.send(Err(away(&reason)))));
            }
            // What it refused at once concerns one of them, perhaps.
            Err(_) if keys.len() > 1 => read_alone(&read, &keys, answers).await,
            Err(error) => drop(answers.into_iter().next().map(|answer| answer.send(Err(error)))),
        }
    }
}

/// Reads each alone. After the second one that finds the database away, the rest is not tried.
async fn read_alone<K: Clone, V>(read: &ReadMany<K, V>, keys: &[K], answers: Answers<V>) {
    let mut away_count = 0;
    for (key, answer) in keys.iter().zip(answers) {
        let value = if away_count < AWAY_MAX {
            let values = read(Arc::from([key.clone()])).await;
            values.and_then(|values| values.into_iter().next().unwrap_or_else(|| Err(away("nothing was read"))))
        } else {
            Err(away("the database did not answer others just now"))
        };
        away_count += usize::from(matches!(value, Err(Error::Away { .. })));
        let _ = answer.send(value);
    }
}

type Answers<V> = Vec<oneshot::Sender<Result<V, Error>>>;

impl<K, V> Slot<K, V> {
    /// What waits now, but for those who have gone. After none it does not count any more: whoever asks next begins a statement.
    fn take(&mut self) -> Option<(Arc<[K]>, Answers<V>)> {
        let mut waiting = lock(&self.waiting);
        waiting.reads.retain(|(_, answer)| !answer.is_closed());
        let count = waiting.reads.len().min(READS_MAX);
        let (keys, answers): (Vec<K>, Vec<_>) = waiting.reads.drain(..count).unzip();
        if keys.is_empty() {
            waiting.statements -= 1;
            self.is_counted = false;
            return None;
        }
        Some((keys.into(), answers))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{FutureExt, future::join_all};
    use taskwire_core::TaskId;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    type Sent = mpsc::Receiver<Vec<u32>>;

    /// Reads ten times each number, when it may; a statement with the number 13 fails, and with 99 the database is away. Says which numbers
    /// each statement has.
    fn tens() -> (Gather<u32, u32>, Arc<Semaphore>, Sent) {
        let (sent, statements) = mpsc::channel(100);
        let may = Arc::new(Semaphore::new(0));
        let gather = Gather::new({
            let may = may.clone();
            move |keys: Arc<[u32]>| {
                let (may, sent) = (may.clone(), sent.clone());
                async move {
                    let _ = sent.send(keys.to_vec()).await;
                    may.acquire().await.expect("it is open").forget();
                    if keys.contains(&99) {
                        return Err(away("99"));
                    }
                    if keys.contains(&13) {
                        return Err(Error::corrupt_task(TaskId::from_bytes(&[1; 20]).expect("an id"), "13"));
                    }
                    Ok(keys.iter().map(|key| Ok(key * 10)).collect())
                }
            }
        });
        (gather, may, statements)
    }

    #[tokio::test]
    async fn what_is_asked_for_while_the_database_is_busy_is_one_statement() {
        let (gather, may, mut statements) = tens();
        let first: Vec<_> = [1, 2].map(|key| Box::pin(gather.get(key))).into_iter().collect();
        let mut first = pin!(join_all(first));
        assert!(first.as_mut().now_or_never().is_none());
        let mut rest = pin!(join_all((20..57).map(|key| gather.get(key))));
        assert!(rest.as_mut().now_or_never().is_none());
        assert_eq!(statements.recv().await.expect("who asks alone waits for nobody")[0], 1);
        may.add_permits(10);
        let (first, rest) = (first.await, rest.await);
        let read: Vec<u32> = first.into_iter().chain(rest).map(|read| read.expect("it is read")).collect();
        assert_eq!(read, [1, 2].into_iter().chain(20..57).map(|key| key * 10).collect::<Vec<_>>());
        let more = std::iter::from_fn(|| statements.try_recv().ok()).count();
        assert!(more <= 3, "{more} more statements for 39 reads");
        assert_eq!(lock(&gather.waiting).statements, 0);
        assert_eq!(gather.get(50).await.expect("the next one begins a statement"), 500);
    }

    #[tokio::test]
    async fn what_is_damaged_fails_alone() {
        let (gather, may, _statements) = tens();
        may.add_permits(100);
        let read = join_all([7, 8, 12, 13, 14].map(|key| gather.get(key))).await;
        let read: Vec<Option<u32>> = read.into_iter().map(Result::ok).collect();
        assert_eq!(read, [Some(70), Some(80), Some(120), None, Some(140)]);
    }

    #[tokio::test]
    async fn an_outage_is_met_a_few_times_and_not_by_each() {
        let (gather, may, mut statements) = tens();
        may.add_permits(100);
        assert_eq!(join_all([7, 99, 8].map(|key| gather.get(key))).await.into_iter().filter(Result::is_ok).count(), 2);
        let _ = std::iter::from_fn(|| statements.try_recv().ok()).count();
        let read = join_all([99, 99, 99, 99, 7].map(|key| gather.get(key))).await;
        assert!(read.iter().all(Result::is_err), "{read:?}");
        assert_eq!(std::iter::from_fn(|| statements.try_recv().ok()).count(), 1 + AWAY_MAX);
    }

    #[tokio::test]
    async fn a_database_that_says_nothing_is_away_for_all_who_wait() {
        let (mut gather, may, mut statements) = tens();
        gather.silence = Duration::ZERO;
        may.add_permits(100);
        assert!(join_all([99, 5, 6].map(|key| gather.get(key))).await.iter().all(Result::is_err));
        assert_eq!(std::iter::from_fn(|| statements.try_recv().ok()).count(), 1, "nobody is read alone");
    }

    #[tokio::test]
    async fn who_has_hung_up_is_not_read_for_and_others_are() {
        let (gather, may, mut statements) = tens();
        let mut busy = pin!(join_all([1, 2].map(|key| gather.get(key))));
        assert!(busy.as_mut().now_or_never().is_none());
        let first = statements.recv().await.expect("a statement");
        drop(gather.get(3).now_or_never());
        let mut waits = pin!(gather.get(4));
        assert!(waits.as_mut().now_or_never().is_none());
        may.add_permits(10);
        assert_eq!(waits.await.expect("it is read"), 40);
        busy.await;
        let read: Vec<u32> = first.into_iter().chain(std::iter::from_fn(|| statements.try_recv().ok()).flatten()).collect();
        assert_eq!(read, [1, 2, 4]);
    }
}

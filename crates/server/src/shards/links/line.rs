//! One connection to another shard: batches as frames, in both directions.
//!
//! A frame is a length of 4 bytes and a batch ([`MessageBatch::write`]); one of no bytes says that the other is there.

use super::Shared;
use super::secured::LinkStream;
use crate::shards::{FrameArrival, FrameSequence, MessageBatch, Sender, Transport};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::{Instant, sleep, timeout};

/// After so long in which nothing was to be said, that is said.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(500);
/// Who has not been heard for so long is not there.
const SILENCE: Duration = Duration::from_secs(2);
/// Who had to wait so long for what comes had nothing left to read.
const WAITED: Duration = Duration::from_millis(1);
/// How soon it is looked again whether the shard has taken what came before.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes that may wait for the shard before no more are read for it.
const WAITING_MAX: usize = 16 << 20;
/// Bytes for which there is room before they have come.
const EXPECTED_MAX: usize = 64 << 10;

/// Carries batches between this shard and another one, over the connection of this count, until that ends: why it has.
pub(super) async fn carry(
    shared: &Shared,
    (sender, count): (Sender, u64),
    stream: LinkStream,
) -> String {
    let (reads, writes) = split(stream);
    tokio::select! {
        why = read(shared, sender, reads) => why,
        why = write(shared, (sender, count), writes) => why,
    }
}

async fn write(
    shared: &Shared,
    (to, count): (Sender, u64),
    mut stream: WriteHalf<LinkStream>,
) -> String {
    let news = shared.transport.news_for(to.shard);
    let (mut frames, mut sequence) = (Vec::new(), FrameSequence::default());
    loop {
        frames.clear();
        for batch in shared.transport.take_for(to.shard) {
            if batch.connection == count {
                frame((to.format, sequence.stamp()), &batch, &mut frames);
            }
        }
        if frames.is_empty() {
            if timeout(HEARTBEAT, news.notified()).await.is_ok() {
                continue;
            }
            frames.extend_from_slice(&[0; 4]);
        }
        let sent = async {
            stream.write_all(&frames).await?;
            // What is encrypted may have stayed in a buffer.
            stream.flush().await
        };
        if let Err(why) = sent.await {
            return format!("nothing can be sent: {why}");
        }
        frames.shrink_to(EXPECTED_MAX);
    }
}

/// Writes a batch in a format as the frame of this number behind what `frames` has.
pub(super) fn frame((format, number): (u16, u64), batch: &MessageBatch, frames: &mut Vec<u8>) {
    let start = frames.len();
    frames.extend_from_slice(&[0; 4]);
    match batch.write((format, number), frames) {
        Ok(()) => {
            let len = (frames.len() - start - 4) as u32;
            frames[start..start + 4].copy_from_slice(&len.to_le_bytes());
        }
        Err(unsayable) => {
            debug_assert!(false, "{unsayable:?}: {batch:?}");
            frames.truncate(start);
        }
    }
}

pub(super) fn too_long(len: usize, most: usize) -> String {
    format!("a message of {len} bytes was announced; at most {most} are allowed")
}

/// What a frame has; `None`: it has come before.
pub(super) fn batch(
    bytes: &[u8],
    sender: &Sender,
    sequence: &mut FrameSequence,
    transport: &Transport,
) -> Result<Option<MessageBatch>, String> {
    let read = MessageBatch::read(bytes, sender);
    let (number, batch) = read.map_err(|why| {
        transport.count_refused();
        format!("what has come is no message of the shard: {why}")
    })?;
    match sequence.arrives(number) {
        FrameArrival::Next => Ok(Some(batch)),
        FrameArrival::Again => {
            transport.count_refused();
            Ok(None)
        }
        FrameArrival::BehindMissing => {
            transport.count_refused();
            Err(format!("a message before the one of number {number} is missing"))
        }
    }
}

async fn read(shared: &Shared, sender: Sender, mut stream: ReadHalf<LinkStream>) -> String {
    let me = shared.settings.me;
    let mut sequence = FrameSequence::default();
    // When it had last read all that had come: what is read without a wait may be as old.
    let mut drained = Instant::now();
    loop {
        let began = Instant::now();
        let len = match timeout(SILENCE, stream.read_u32_le()).await {
            Ok(Ok(len)) => len as usize,
            Ok(Err(why)) => return format!("it has ended: {why}"),
            Err(_) => return String::from("nothing was heard for two seconds"),
        };
        let heard = &shared.heard[usize::from(sender.shard.0)];
        if began.elapsed() >= WAITED {
            drained = began;
        }
        if len == 0 {
            heard.set(drained);
            continue;
        }
        if len > shared.settings.batch_bytes_max {
            shared.transport.count_refused();
            return too_long(len, shared.settings.batch_bytes_max);
        }
        let mut bytes = Vec::with_capacity(len.min(EXPECTED_MAX));
        while bytes.len() < len {
            let mut rest = (&mut stream).take((len - bytes.len()) as u64);
            match timeout(SILENCE, rest.read_buf(&mut bytes)).await {
                Ok(Ok(0)) => return String::from("it has ended within a message"),
                Ok(Ok(_)) => {}
                Ok(Err(why)) => return format!("it has ended: {why}"),
                Err(_) => return String::from("nothing was heard for two seconds"),
            }
        }
        let batch = match batch(&bytes, &sender, &mut sequence, &shared.transport) {
            Ok(Some(batch)) => batch,
            Ok(None) => continue,
            Err(why) => return why,
        };
        while shared.transport.waiting_for(me) > WAITING_MAX {
            sleep(LOOK).await;
        }
        shared.transport.bring(me, batch);
        // That it has waited for the shard makes what it says no younger, and where it ends meanwhile it was not heard.
        heard.set(drained);
    }
}

"""etcd's messages, of etcd.proto: written by tools/generate_etcd_messages.py."""

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_POOL = DescriptorPool()  # of its own: other clients in this process may have the same messages
_POOL.AddSerializedFile(
    b'\n\netcd.proto\x12\rfencelog.etcd"U\n\x08KeyValue\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12!\n\x0cmod_revision\x18\x03 \x01(\x03R'
    b'\x0bmodRevision\x12\x14\n\x05value\x18\x05 \x01(\x0cR\x05value"\x86\x01\n\x05Event\x122\n\x04type\x18\x01 \x01(\x0e2\x1e.fencelog.etcd.Event'
    b'.EventTypeR\x04type\x12\'\n\x02kv\x18\x02 \x01(\x0b2\x17.fencelog.etcd.KeyValueR\x02kv" \n\tEventType\x12\x07\n\x03PUT\x10\x00\x12'
    b'\n\n\x06DELETE\x10\x01"I\n\x0eResponseHeader\x12\x1a\n\x08revision\x18\x03 \x01(\x03R\x08revision\x12\x1b\n\traft_term\x18\x04 \x01(\x04R\x08ra'
    b'ftTerm"o\n\x0cRangeRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd\x12\x14\n\x05limit\x18\x03'
    b' \x01(\x03R\x05limit\x12\x1a\n\x08revision\x18\x04 \x01(\x03R\x08revision"\x85\x01\n\rRangeResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.fenc'
    b'elog.etcd.ResponseHeaderR\x06header\x12)\n\x03kvs\x18\x02 \x03(\x0b2\x17.fencelog.etcd.KeyValueR\x03kvs\x12\x12\n\x04m'
    b'ore\x18\x03 \x01(\x08R\x04more"J\n\nPutRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x14\n\x05value\x18\x02 \x01(\x0cR\x05value\x12\x14\n\x05lease\x18\x03'
    b' \x01(\x03R\x05lease"&\n\x12DeleteRangeRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key"\xab\x01\n\tRequestOp\x12<\n\x0brequest_put'
    b'\x18\x02 \x01(\x0b2\x19.fencelog.etcd.PutRequestH\x00R\nrequestPut\x12U\n\x14request_delete_range\x18\x03 \x01(\x0b2!.'
    b'fencelog.etcd.DeleteRangeRequestH\x00R\x12requestDeleteRangeB\t\n\x07request"\x8f\x02\n\x07Compare\x12<\n'
    b'\x06result\x18\x01 \x01(\x0e2$.fencelog.etcd.Compare.CompareResultR\x06result\x12<\n\x06target\x18\x02 \x01(\x0e2$.fe'
    b'ncelog.etcd.Compare.CompareTargetR\x06target\x12\x10\n\x03key\x18\x03 \x01(\x0cR\x03key\x12#\n\x0cmod_revision\x18\x06 \x01('
    b'\x03H\x00R\x0bmodRevision"\x1a\n\rCompareResult\x12\t\n\x05EQUAL\x10\x00"%\n\rCompareTarget\x12\x0b\n\x07VERSION\x10\x00\x12\x07\n\x03MO'
    b'D\x10\x02B\x0e\n\x0ctarget_union"r\n\nTxnRequest\x120\n\x07compare\x18\x01 \x03(\x0b2\x16.fencelog.etcd.CompareR\x07comp'
    b'are\x122\n\x07success\x18\x02 \x03(\x0b2\x18.fencelog.etcd.RequestOpR\x07success"b\n\x0bTxnResponse\x125\n\x06header'
    b'\x18\x01 \x01(\x0b2\x1d.fencelog.etcd.ResponseHeaderR\x06header\x12\x1c\n\tsucceeded\x18\x02 \x01(\x08R\tsucceeded"\xaf\x01\n\x12'
    b'WatchCreateRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd\x12%\n\x0estart_revis'
    b"ion\x18\x03 \x01(\x03R\rstartRevision\x12'\n\x0fprogress_notify\x18\x04 \x01(\x08R\x0eprogressNotify\x12\x1a\n\x08fragment\x18\x08 "
    b'\x01(\x08R\x08fragment"k\n\x0cWatchRequest\x12J\n\x0ecreate_request\x18\x01 \x01(\x0b2!.fencelog.etcd.WatchCreat'
    b'eRequestH\x00R\rcreateRequestB\x0f\n\rrequest_union"\x96\x02\n\rWatchResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.f'
    b'encelog.etcd.ResponseHeaderR\x06header\x12\x18\n\x07created\x18\x03 \x01(\x08R\x07created\x12\x1a\n\x08canceled\x18\x04 \x01(\x08R'
    b'\x08canceled\x12)\n\x10compact_revision\x18\x05 \x01(\x03R\x0fcompactRevision\x12#\n\rcancel_reason\x18\x06 \x01(\tR\x0ccan'
    b'celReason\x12\x1a\n\x08fragment\x18\x07 \x01(\x08R\x08fragment\x12,\n\x06events\x18\x0b \x03(\x0b2\x14.fencelog.etcd.EventR\x06eve'
    b'nts"%\n\x11LeaseGrantRequest\x12\x10\n\x03TTL\x18\x01 \x01(\x03R\x03TTL"6\n\x12LeaseGrantResponse\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID'
    b'\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL"$\n\x12LeaseRevokeRequest\x12\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID"\x15\n\x13LeaseRevokeResponse"'
    b'\'\n\x15LeaseKeepAliveRequest\x12\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID"q\n\x16LeaseKeepAliveResponse\x125\n\x06header\x18\x01 \x01'
    b'(\x0b2\x1d.fencelog.etcd.ResponseHeaderR\x06header\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL"E\n\x13A'
    b'uthenticateRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08password\x18\x02 \x01(\tR\x08password",\n\x14Authentica'
    b'teResponse\x12\x14\n\x05token\x18\x02 \x01(\tR\x05token"\x0f\n\rStatusRequest"\x91\x01\n\x0eStatusResponse\x125\n\x06header\x18\x01'
    b' \x01(\x0b2\x1d.fencelog.etcd.ResponseHeaderR\x06header\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12\x16\n\x06leader\x18'
    b'\x04 \x01(\x04R\x06leader\x12\x16\n\x06errors\x18\x08 \x03(\tR\x06errorsb\x06proto3'
)

KeyValue = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.KeyValue"))
Event = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.Event"))
ResponseHeader = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.ResponseHeader"))
RangeRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.RangeRequest"))
RangeResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.RangeResponse"))
PutRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.PutRequest"))
DeleteRangeRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.DeleteRangeRequest"))
RequestOp = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.RequestOp"))
Compare = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.Compare"))
TxnRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.TxnRequest"))
TxnResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.TxnResponse"))
WatchCreateRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.WatchCreateRequest"))
WatchRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.WatchRequest"))
WatchResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.WatchResponse"))
LeaseGrantRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.LeaseGrantRequest"))
LeaseGrantResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.LeaseGrantResponse"))
LeaseRevokeRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.LeaseRevokeRequest"))
LeaseRevokeResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.LeaseRevokeResponse"))
LeaseKeepAliveRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.LeaseKeepAliveRequest"))
LeaseKeepAliveResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.LeaseKeepAliveResponse"))
AuthenticateRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.AuthenticateRequest"))
AuthenticateResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.AuthenticateResponse"))
StatusRequest = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.StatusRequest"))
StatusResponse = GetMessageClass(_POOL.FindMessageTypeByName("fencelog.etcd.StatusResponse"))

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/** A claim of ownership: one request of fencelog's own on a connection, which holds what it owns. */
final class Claimant implements AutoCloseable {
    private static final int OWN = 10010;
    private static final int LEASE_MS = 300_000;

    private final Socket socket;

    Claimant(String address) throws IOException {
        String[] parts = address.split(":");
        socket = new Socket(parts[0], Integer.parseInt(parts[1]));
    }

    /** Claims the resource, whoever holds it; a group's claim guards its commits, not writes. */
    void own(String group, String resource, String name) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream request = new DataOutputStream(bytes);
        request.writeShort(OWN);
        request.writeShort(0); // version
        request.writeInt(1); // correlation id
        request.writeShort(-1); // no client id
        request.writeByte(0); // no tagged fields
        string(request, group);
        request.writeByte(1 + 1); // resources
        string(request, resource);
        request.writeLong(-1); // the next generation
        request.writeLong(-1); // no epoch before
        request.writeByte(0);
        string(request, "Java");
        request.writeInt(LEASE_MS);
        string(request, name);
        string(request, ""); // it does not wait
        request.writeInt(0);
        request.writeByte(0);
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(bytes.size());
        out.write(bytes.toByteArray());
        DataInputStream in = new DataInputStream(socket.getInputStream());
        byte[] answer = new byte[in.readInt()];
        in.readFully(answer);
        int error = answer[9] << 8 | answer[10]; // behind the header and the throttle time
        Checks.equal(0, error);
    }

    private static void string(DataOutputStream out, String text) throws IOException {
        byte[] bytes = text == null ? new byte[0] : text.getBytes(StandardCharsets.UTF_8);
        Checks.isTrue(bytes.length < 127, "its length is one byte");
        out.writeByte(text == null ? 0 : bytes.length + 1);
        out.write(bytes);
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}

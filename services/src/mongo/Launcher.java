import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.AbstractMongoBackend;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import java.util.ArrayList;
import java.util.List;

/**
 * Starts mongo-java-server on a loopback port: {@code Launcher PORT [NAME=VALUE]...}.
 *
 * <p>{@code file} is the file that keeps the data; without it they are kept in memory. {@code version} and {@code
 * wireVersion} are what the server calls itself.
 */
public final class Launcher {
    private Launcher() {}

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        String file = null;
        String version = "4.4.0";
        int wireVersion = 9;
        for (int i = 1; i < args.length; i++) {
            String[] setting = args[i].split("=", 2);
            String value = setting.length > 1 ? setting[1] : "";
            switch (setting[0]) {
                case "file" -> file = value.isEmpty() ? null : value;
                case "version" -> version = value;
                case "wireVersion" -> wireVersion = Integer.parseInt(value);
                default -> {
                    System.err.println("unknown setting `" + setting[0] + "`; known are file, version, wireVersion");
                    System.exit(2);
                }
            }
        }
        AbstractMongoBackend backend = file == null ? new MemoryBackend() : new Durable(file);
        backend.version(new Version(version, wireVersion));
        MongoServer server = new MongoServer(backend);
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        try {
            server.bind("127.0.0.1", port);
        } catch (Exception e) {
            // The threads of the server would keep the process.
            e.printStackTrace();
            System.exit(1);
        }
        System.out.println("listening on " + server.getLocalAddress());
    }

    /** Hands every write to the operating system before it is answered, so that a killed process has lost nothing. */
    private static final class Durable extends H2Backend {
        Durable(String file) {
            super(file);
        }

        @Override
        public Document handleMessage(MongoMessage message) {
            try {
                return super.handleMessage(message);
            } finally {
                // Does nothing after a command that has only read.
                commit();
            }
        }
    }

    /** Drivers of today want version 9 of the protocol, and the library's own versions end at 8. */
    private static final class Version implements MongoVersion {
        private final List<Integer> numbers = new ArrayList<>();
        private final int wireVersion;

        Version(String text, int wireVersion) {
            for (String number : text.split("\\.")) {
                numbers.add(Integer.parseInt(number));
            }
            this.wireVersion = wireVersion;
        }

        @Override
        public List<Integer> getVersionArray() {
            return numbers;
        }

        @Override
        public int getWireVersion() {
            return wireVersion;
        }
    }
}
